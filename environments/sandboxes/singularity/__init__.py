"""The backend ``singularity``: sandboxes as instances of Apptainer or Singularity on this machine."""
