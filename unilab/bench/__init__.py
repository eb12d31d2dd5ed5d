"""`unilab bench`: what a control step costs, beside what it would cost otherwise."""
