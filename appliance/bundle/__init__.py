"""What is carried to a site without a network: so far one model, with a checksum for every file."""
