"""Tables, what their columns mean, how they become numbers, and how they are spread over sites."""
