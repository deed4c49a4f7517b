"""What a run leaves behind: its folder, its metrics, its trajectories, its checkpoints, its report."""
