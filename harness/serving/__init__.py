"""The web server of `shaketable serve`: index a store's runs and show them in a browser."""
