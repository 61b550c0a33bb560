"""What the machine takes and returns: frozen values. The floor of all."""
