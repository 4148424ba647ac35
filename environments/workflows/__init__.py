"""The three workflows: where items come from and where attempts go."""
