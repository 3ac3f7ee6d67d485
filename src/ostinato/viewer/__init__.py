"""A web page on this machine to look inside trained runs, and to watch runs while they are trained."""
