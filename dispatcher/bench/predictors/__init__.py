"""`headway bench predictors`: how well output lengths are foretold, and what a prediction costs."""
