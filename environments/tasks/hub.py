"""Datasets of the Hugging Face Hub at one commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from environments.errors import ConfigError, MissingExtra, suggestion

KNOWN = ("NousResearch/terminal-bench-2", "NousResearch/openthoughts-tblite")
"""Names that users mean most often, for hints."""


def rows_of_hub(name: str, split: str, revision: str | None) -> tuple[Iterable[Mapping[str, Any]], str]:
    """Rows of a dataset, and the commit that they are of: the newest where no revision is given.

    Raises ``MissingExtra``, and ``ConfigError`` that says what is wrong: the name, the revision, the split,
    the right to read it, or the way to the Hub.
    """
    try:
        import datasets
        from huggingface_hub import HfApi
    except ImportError:
        raise MissingExtra(f"the dataset {name}", "datasets") from None
    try:
        commit = HfApi().dataset_info(name, revision=revision).sha or revision
        splits = datasets.get_dataset_split_names(name, revision=commit)
        if split not in splits:
            raise ConfigError(f"the dataset {name} has no split {split!r}{suggestion(split, splits)}")
        rows = datasets.load_dataset(name, split=split, revision=commit)
    except ConfigError:
        raise
    except Exception as error:  # theirs have no common base, and come of many libraries
        raise ConfigError(f"{_reason(name, revision, error)}. {_ADVICE}") from error
    return rows, commit or "unknown"


_ADVICE = "A copy on this machine works too: name a directory of tasks, or a .parquet or .jsonl file"


def _reason(name: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.RevisionNotFoundError):
        return f"the dataset {name} has no revision {revision!r}"
    if isinstance(error, errors.GatedRepoError):
        return f"the dataset {name} is gated: accept its terms, and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = suggestion(name, KNOWN)
        return f"the Hub has no dataset {name}{hint}; or it is private, then set HF_TOKEN"
    lines = str(error).strip().splitlines()
    return f"the dataset {name} cannot be loaded ({type(error).__name__}): {lines[0] if lines else 'no word'}"
