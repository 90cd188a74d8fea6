"""What a launch leaves in `launches/<id>/`: the supervisor writes it, and everything else reads it, through here."""
