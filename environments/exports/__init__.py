"""Training data for others: rollouts as rows for supervised fine-tuning and preference training."""
