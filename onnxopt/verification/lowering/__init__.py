"""Lower precision by measurement: ranges, conversion, quality, and the nodes that stay float32."""
