"""What the notebook of one factor shows beyond the cells that all share: a function of an experiment each."""
