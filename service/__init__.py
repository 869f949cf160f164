"""The service: REST API, store, queue, runner and pages."""
