from tests.fakes.dockerd import docker_image, docker_socket  # noqa: F401 - fixtures
