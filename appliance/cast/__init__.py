"""The commands about casts: `ingot cast` makes one, `ingot verify` proves one."""
