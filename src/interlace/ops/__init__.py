"""Pure functions of tensors: one folder per operator, a reference beside each fast way."""
