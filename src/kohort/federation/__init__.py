"""Sites, plans, the wire and the engines that drive a plan."""
