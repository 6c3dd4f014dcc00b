"""Models as pure functions: `Model.init` and `Model.apply`."""
