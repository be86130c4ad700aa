"""Small core, number by number: what mutation testing asked for."""
