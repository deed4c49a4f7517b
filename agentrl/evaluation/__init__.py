"""How good a student is, with intervals, on tasks it was not trained on."""
