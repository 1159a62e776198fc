"""A model behind HTTP: requests in OpenAI's form, answered side by side from compressed caches."""
