"""What the backends share whose sandboxes run on a provider's machines."""
