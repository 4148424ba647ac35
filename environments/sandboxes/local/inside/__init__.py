"""The programs that build and serve one sandbox; standard library only, imported before isolation."""
