"""Food ordering: an assistant takes an order from a simulated user with an agenda and places it by tools."""
