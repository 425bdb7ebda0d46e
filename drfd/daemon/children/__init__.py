"""Child processes that compute for the controller: forecasts and reports."""
