# truemirror in a container:
#
#   docker build -t truemirror .
#   docker run -v $PWD/truemirror.toml:/etc/truemirror/truemirror.toml:ro truemirror            runs the daemon
#   docker run -v $PWD/truemirror.toml:/etc/truemirror/truemirror.toml:ro truemirror verify     any other command
#
# Bases are pinned to full versions, not to digests: nothing here needs a registry to be checked. tests/dockerfile.rs holds
# this file to what it copies and to the toolchain.

FROM rust:1.95.0-bookworm AS build
WORKDIR /build
# Without rust-toolchain.toml: the image has the compiler, and the file would bring in formatter and linter.
COPY Cargo.toml Cargo.lock ./
COPY src ./src
RUN cargo build --locked --release --bin truemirror

FROM debian:12.12-slim
COPY LICENSE /usr/share/doc/truemirror/LICENSE
COPY --from=build /build/target/release/truemirror /usr/local/bin/truemirror
# By number: Kubernetes cannot tell of a name that it is not root.
USER 65532:65532
EXPOSE 9495
# The image has no HTTP client; bash speaks enough. It asks the default of http.bind.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
  CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9495 && printf 'GET /livez HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '^HTTP/1.[01] 200 ' <&3"]
ENTRYPOINT ["/usr/local/bin/truemirror"]
CMD ["run"]
