"""Pack and verify what is carried to a site without a network."""
