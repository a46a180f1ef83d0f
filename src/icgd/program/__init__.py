"""Programs: named slots and instructions on them. No tensors."""
