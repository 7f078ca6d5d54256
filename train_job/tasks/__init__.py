"""What models are trained to do: data, loss, metrics and the shape of a prediction."""
