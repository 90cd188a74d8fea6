"""`ingot accept`: whether a site answers as it should, in one report that a customer can sign."""
