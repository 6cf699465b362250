#!/usr/bin/env python3
"""A second implementation of the mirror calls, after the tables of KIP-1279 only: asks the listener at HOST PORT for its
versions, reads two states and writes two, and prints the answers as JSON. Usage: mirror_client.py HOST PORT"""
import json
import socket
import struct
import sys


def uvarint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def string(text):
    return uvarint(len(text.encode()) + 1) + text.encode()


def array(items):
    return uvarint(len(items) + 1) + b"".join(items)


def tags(fields=()):
    return uvarint(len(fields)) + b"".join(uvarint(tag) + uvarint(len(value)) + value for tag, value in fields)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        piece = self.data[self.at:self.at + count]
        assert len(piece) == count, "the message ends too early"
        self.at += count
        return piece

    def number(self, form):
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]

    def uvarint(self):
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def string(self):
        length = self.uvarint()
        return None if length == 0 else self.take(length - 1).decode()

    def array(self, element):
        return [element() for _ in range(self.uvarint() - 1)]

    def tags(self):
        fields = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields[tag] = self.take(self.uvarint())
        return fields

    def end(self):
        assert self.at == len(self.data), f"{len(self.data) - self.at} bytes left over"


def call(stream, key, version, correlation, body):
    client = b"python"
    header = struct.pack(">hhih", key, version, correlation, len(client)) + client + tags()
    stream.sendall(struct.pack(">i", len(header + body)) + header + body)
    with_length = stream.makefile("rb")
    answer = Reader(with_length.read(struct.unpack(">i", with_length.read(4))[0]))
    assert answer.number("i") == correlation
    if key != 18:
        answer.tags()
    return answer


def api_versions(stream):
    answer = call(stream, 18, 3, 1, string("python") + string("3") + tags())
    error = answer.number("h")

    def api():
        key, least, most = answer.number("h"), answer.number("h"), answer.number("h")
        answer.tags()
        return [key, least, most]

    apis = answer.array(api)
    answer.number("i")
    answer.tags()
    answer.end()
    return {"error": error, "apis": apis}


def result(answer, partition):
    head = {"throttle": answer.number("i"), "error": answer.number("h"), "message": answer.string()}

    def topic():
        found = {"name": answer.string(), "partitions": answer.array(lambda: partition(answer))}
        answer.tags()
        return found

    head["topics"] = answer.array(topic)
    answer.tags()
    answer.end()
    return head


def read_states(stream):
    partitions = [struct.pack(">i", index) + tags() for index in (0, 1)]
    body = string("east") + array([string("orders") + array(partitions) + tags()]) + tags()

    def partition(answer):
        found = {"partition": answer.number("i"), "epoch": answer.number("i"), "state": answer.number("b"), "error": answer.number("h")}
        more = answer.tags()
        found["previous"] = struct.unpack(">b", more.get(0, b"\x10"))[0]
        found["attempt"] = struct.unpack(">h", more.get(1, b"\0\0"))[0]
        found["state_epoch"] = struct.unpack(">i", more.get(1000, b"\xff" * 4))[0]
        return found

    return result(call(stream, 100, 0, 2, body), partition)


def write_states(stream):
    plain = struct.pack(">iib", 0, 5, 2) + tags()
    # Tag 999 is nobody's: it must be read over.
    fenced = struct.pack(">iib", 1, -1, 7) + tags([(999, b"??"), (1000, struct.pack(">i", 3)), (1001, string("why"))])
    body = string("east") + array([string("orders") + array([plain, fenced]) + tags()]) + array([string("gone")]) + tags()

    def partition(answer):
        found = {"partition": answer.number("i"), "error": answer.number("h")}
        more = answer.tags()
        found["state_epoch"] = struct.unpack(">i", more.get(1000, b"\xff" * 4))[0]
        return found

    return result(call(stream, 101, 0, 3, body), partition)


with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
    print(json.dumps({
        "versions": api_versions(connection),
        "read": read_states(connection),
        "write": write_states(connection),
    }))
