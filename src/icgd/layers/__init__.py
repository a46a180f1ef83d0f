"""The transformer's layers as torch modules: tensors only."""
