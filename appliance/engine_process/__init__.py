"""What every supervised engine has: its process, with all that this one starts, its log, its deadlines and its end."""
