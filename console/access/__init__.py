"""Who may use the console and the API: set-up, sign-in, sessions, passwords, API keys, and the guard at the door."""
