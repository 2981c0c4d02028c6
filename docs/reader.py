#!/usr/bin/env python3
"""Prints the records of a trace of kVMTrace, of a piece or of a part, one JSON object a line, in order.

Use: python3 docs/reader.py FILE. It was written from docs/format.md, and needs nothing but Python 3.9 or later;
only compressed packets need the package zstandard. It keeps the file in memory and is not fast: for work, use
postproc. It exits with 1 if something is missing, damaged or refused, and reports that on standard error."""
import functools
import heapq
import io
import json
import struct
import sys

VTIME, OFFSETS, PIECES, KNOWN, MOST = 1 << 1, 1 << 4, 1 << 16, 0x4FF | 1 << 16 | 1 << 32, (1 << 63) - 1
HEADER = (  # what is used of the header: name, offset, size, and bounds
    ("version", 8, 4, 1, 1), ("header_size", 12, 4, 4096, 4096), ("start_time", 32, 8, 0, MOST),
    ("features", 48, 8, 0, MOST), ("evms_size", 56, 4, 1, 1 << 22), ("policy", 64, 4, 0, 1), ("scope", 68, 4, 1, 4),
    ("page_shift", 76, 4, 12, 16), ("nr_cpus", 80, 4, 1, 1024), ("clock", 84, 4, 1, 1), ("sets", 4032, 4, 0, 2),
    ("buffer_size", 96, 4, 256, 1 << 20), ("stay_shift", 104, 4, 0, 31), ("interval", 3768, 8, 0, 3600 * 10**9))
PACKET = "<8s16sHHI7Q6I", """magic uuid kind codec cpu seq first_seq last_seq first_time last_time lost_full set lost_io
raw_size records content_size window crc"""
REF, EVENT, END, WINDOW, PIECE, STATE, OWN, PIECE_END, PART, CONTEXT = NAMED = 1, 2, 3, 4, 16, 17, 18, 19, 32, 33
KINDS, WHY = ["read", "write", "exec", "seen"], """evicted unmapped cow protected reclaimed moved exit drained migrated
advised truncated other renewed chance piece interval""".split()
FLAGS = (("kernel", 4), ("dirtied", 8), ("again", 16), ("cont", 0x200), ("left", 0x400))
RANGE, PAGE, NONE = ("<3Q", "start end arg"), ("<4Q", "page old_pfn new_pfn arg"), ("<", "")
SHM, FILE = ("<4QiI", "start end dev ino shmid generation"), ("<3Q4I", "dev ino length generation kind name_len pad")
IO = "<4QIHBB", "dev ino offset bytes generation kind call flags"
EVENTS = {  # by type: the name, the layout and the fields
    1: ("map", "<5Q3IHHII", "start end offset dev ino generation prot flags kind cause name_len pad"),
    2: ("unmap", *RANGE), 3: ("move", "<5Q", "old_start old_len new_start new_len flags"), 4: ("protect", *RANGE),
    5: ("advise", *RANGE), 6: ("cow", *PAGE), 7: ("mm_dup", "<II", "parent pad"), 8: ("mm_end", *NONE),
    16: ("fork", "<4IQQ", "child_tid child_tgid child_mm pad clone_flags child_start"),
    17: ("exec", "<IIQQ16sII", "old_mm name_len dev ino comm generation pad"),
    18: ("exit", "<QQiI", "utime stime code pad"), 19: ("task", "<4I16sQ", "tid tgid parent pad comm start"),
    20: ("switch", "<II", "prev next"), 21: ("cgroup", "<4I", "tid tgid name_len pad"), 32: ("shmat", *SHM),
    33: ("shmdt", *SHM), 34: ("shm_destroy", *SHM), 48: ("open", *FILE), 49: ("close", *FILE), 50: ("read", *IO),
    51: ("write", *IO), 52: ("truncate", *IO), 53: ("punch", *IO), 54: ("delete", *IO), 64: ("swap_in", *PAGE),
    65: ("swap_out", *PAGE), 66: ("ksm", *PAGE), 67: ("migrate", *PAGE), 80: ("gup", *PAGE),
    83: ("resize", "<II", "from to"), 84: ("set", "<IIQ", "set pad cgroup"), 85: ("filter", "<II", "nr_tests expr_len"),
    86: ("region", "<QQ4IQII", "start end looks accesses writes age cpus index regions"), 96: ("snap_begin", *NONE),
    97: ("snap_end", *NONE), 98: ("refs_begin", *NONE), 99: ("checkpoint", "<II", "last_mm pad"),
    100: ("checkpoint_end", *NONE)}
CRC = [functools.reduce(lambda crc, _: crc >> 1 ^ 0x82F63B78 * (crc & 1), range(8), byte) for byte in range(256)]
crc32c = lambda data: functools.reduce(lambda crc, byte: crc >> 8 ^ CRC[crc & 0xFF ^ byte], data, 2**32 - 1) ^ 2**32 - 1
fields = lambda layout, names, data, at=0: dict(zip(names.split(), struct.unpack_from(layout, data, at)))
PROBLEMS = []


def report(at, what):
    PROBLEMS.append((at, what))
    print(f"reader: {sys.argv[1]}: byte {at}: {what}", file=sys.stderr)


def demand(good, message):
    if not good:
        raise ValueError(message)


def read_header(data):
    demand(data[:8] == b"kVMTrace", "this is no trace; if it is compressed, decompress it first")
    demand(crc32c(data[:4092]).to_bytes(4, "little") == data[4092:4096], "the header is damaged or was cut short")
    header = {name: int.from_bytes(data[at:at + size], "little") for name, at, size, _, _ in HEADER}
    for name, _, _, low, high in HEADER:
        demand(low <= header[name] <= high, f"{name} in the header is {header[name]}, not {low} to {high}")
    demand(not 0 < header["interval"] < 10**6, "interval in the header is less than 1 ms")
    demand(header["features"] & ~KNOWN == 0, f"the header has unknown features: {header['features']:#x}")
    extras = [name for name, bit in (("vtime", VTIME), ("offset", OFFSETS)) if header["features"] & bit]
    return {**header, "uuid": data[16:32], "extras": extras, "layout": "<Q6I" + "Q" * len(extras)}


def packets(data, header):
    """Yields the place of each good packet, its head, and its content as it is stored."""
    at, last = 4096, PIECE_END if header["features"] & PIECES else END
    while 0 <= at < len(data):
        try:
            demand(data[at:at + 24] == b"VMTpackt" + header["uuid"], "no packet of this trace begins here")
            p = fields(*PACKET, data, at)
            content = data[at + 112:at + 112 + p["content_size"]]
            demand(len(content) == p["content_size"], "the file ends inside a packet")
            demand(crc32c(data[at:at + 108] + bytes(4) + content) == p["crc"], "a packet's checksum is wrong")
        except (ValueError, struct.error) as bad:
            report(at, bad)
            at = data.find(b"VMTpackt" + header["uuid"], at + 8)  # where a packet may begin, or -1
            continue
        yield at, p, content
        at = len(data) if p["kind"] == last else at + 112 + len(content)


def unpack(p, content, header):
    """The content as it was before it was packed."""
    is_of_events, length = p["kind"] in (EVENT, STATE), p["raw_size"] if p["codec"] else len(content)
    demand(p["codec"] in ((0, 1, 2, 3) if is_of_events else (0, 1, 2, 3, 4, 6)), "it is packed in an unknown way")
    demand(p["cpu"] < header["nr_cpus"] and length <= max(header["buffer_size"], 872), "its CPU or length is wrong")
    if p["codec"] & 2:
        import zstandard
        content = zstandard.ZstdDecompressor().decompress(content, max_output_size=length)
    if p["codec"] & 5:
        content = (unpack_events(io.BytesIO(content), length) if is_of_events
                   else unpack_refs(p["records"], content, header, is_second=p["codec"] & 4))
    demand(len(content) == length, "its content has another length than its head says")
    return content


def number(column, size, order="little", signed=False):
    data = column.read(size)
    demand(len(data) == size, "a column of a packed packet is too short")
    return int.from_bytes(data, order, signed=signed)


def unpack_refs(records, packed, header, is_second):
    """Unpacks both forms. What is not set for a record is that of the last record."""
    length, time, tid_cpu, lag = struct.unpack_from("<4I", packed)
    lag, shift, middle = lag & 0xFFFFFF, lag >> 24, 16 + records + length
    take = functools.partial(number, io.BytesIO(packed[16 + records:middle]))  # from the numbers
    item = functools.partial(number, io.BytesIO(packed[middle:-8][::-1]), order="big")  # reversed, as its bytes are
    signed = functools.partial(item, signed=True) if is_second else lambda size: (f := item(size)) >> 1 ^ -(f & 1)
    places, successors, offsets, ends, newest, seq, out = {}, {}, {}, {}, (0, 0, 0), -1, bytearray()
    context, mm, end, extras = 0, 0, 0, dict.fromkeys(header["extras"], 0)
    bits, hash_at = (((2, 3), (4, 1), (5, 1), (6, 3)), 52) if is_second else (((0, 3), (2, 1), (7, 1), (3, 3)), 48)
    for i, token in enumerate(packed[16:16 + records]):
        is_short = is_second and token & 3 != 3
        code, other, skip, form = (token & 3 or 3, 0, 0, 0) if is_short else [token >> at & mask for at, mask in bits]
        if code == 2:
            lengths, (address, flags, pfn) = item(1), newest
            address = ((address >> 12) + signed(lengths & 15) << 12) % (1 << 64)
            pfn = (pfn + signed(lengths >> 4)) % (1 << 32)
        else:
            place = item(2) if code == 1 else successors[context][0]
            address, flags, mm, pfn = places[place]
            flags = flags if code == 1 else successors[context][1]
        others = item(1) if other else 0
        demand(others < 16 or is_second and others >= 128, "a record has unknown other fields")
        flags, others = (others - 128, 0) if others >= 128 else (item(2) if others & 1 else flags, others)
        tid_cpu, pfn, mm = [item(4) if others & bit else value for bit, value in ((2, tid_cpu), (4, pfn), (8, mm))]
        if code == 2:
            place, newest = (address >> 12 ^ mm << 44) * 0x9E3779B97F4A7C15 >> hash_at & 4095, (address, flags, pfn)
        if other or code in (1, 2):
            places[place], successors[context] = (address, flags, mm, pfn), (place, flags)
        if "offset" in extras:
            foretold = extras["offset"] if code == 2 else offsets[("place", place) if code == 1 else ("next", context)]
            how = 16 if code == 3 else item(1)
            offset = (how << 8 | item(1) if how < 16 else foretold if how == 16 else 1 << 63 if how == 17
                      else item(how - 18) if how < 27 else foretold + 8 * (how - 144))
            extras["offset"] = offsets["place", place] = offsets["next", context] = offset
        if "vtime" in extras:
            extras["vtime"] = (extras["vtime"] + signed(item(1))) % (1 << 64)
        context = (context << 9 ^ place * 0x9E5) % 16384
        if is_second:
            high = 0 if form == 1 else take(1)  # how the end of the stay is written
            more = (high if high < 224 else 224 + (high - 224 << 8) + take(1) if high < 254
                    else -1 - take(2) if high == 254 else take(4))
            since = token >> 2 if is_short else take((1, 2, 2, 3)[form])
            since = take(4) if since == 0xFFFFFF else since
        else:
            since, more = take(form + 1), take((0, 1, 2, 4)[token >> 5 & 3])
        time, end = ((time if form else ends.get(i - lag, 0)) + since) % (1 << 32), end + more
        stay = (end - (time >> shift)) % (1 << 32)
        ends[i] = time + (stay << shift)
        seq = (seq + ((take(1) or take(4)) if skip else 1)) % (1 << 32)
        out += struct.pack(header["layout"], address | flags, seq, time, tid_cpu, mm, stay, pfn, *extras.values())
    demand(not take.args[0].read() and not item.args[0].read(), "a column of a packed packet is too long")
    return out


def unpack_events(packed, size):
    out, last_of_type, before = bytearray(), {}, [0, 0, 0]
    while len(out) < size:
        kind, words, zeros = number(packed, 1), [], 0
        like = last_of_type.get(kind, [])
        while not words or len(words) < (words[0] >> 16 & 0xFFFF) // 8:
            i, which = len(words), 0 if zeros else number(packed, 1)
            zeros = zeros - 1 if zeros else 0 if which else number(packed, 1)
            word = sum(number(packed, 1) << 8 * byte for byte in range(8) if which >> byte & 1)
            words.append((word + before[i]) % (1 << 64) if i in (1, 2) else word ^ (like[i] if i < len(like) else 0))
        demand(words[0] & 0xFFFF == kind and len(words) >= 5 and zeros == 0, "a packed event cannot be unpacked")
        last_of_type[kind] = before = words
        out += struct.pack(f"<{len(words)}Q", *words)
    return out


def references(p, content, header):
    whys = WHY if header["interval"] else WHY[:-1]
    for page, seq, time, tid_cpu, mm, stay, pfn, *extras in struct.iter_unpack(header["layout"], content):
        record = {"record": "reference" if p["kind"] == REF else "context", "seq": p["first_seq"] + seq,
                  "time": p["first_time"] + time, "cpu": tid_cpu >> 22, "tid": tid_cpu & 0x3FFFFF, "mm": mm,
                  "set": p["set"], "page": page & ~0xFFF, "kind": KINDS[page & 3], "why": whys[page >> 5 & 15],
                  "stay": None if stay == 0xFFFFFFFF else stay << header["stay_shift"], "pfn": pfn}
        yield {**record, **{name: page & bit != 0 for name, bit in FLAGS}, **dict(zip(header["extras"], extras))}


def events(p, content, header):
    at, head = 0, struct.Struct("<HHI2Q4I" + "Q" * ("vtime" in header["extras"]))
    while at < len(content):
        e = fields(head.format, "type size flags seq time tid tgid mm cpu vtime", content, at)
        demand(head.size <= e["size"] <= len(content) - at and e["size"] % 8 == 0, "an event has an impossible size")
        name, layout, names = EVENTS.get(e["type"], ("unknown", *NONE))
        body = content[at + head.size:at + e["size"]]
        own, behind = fields(layout, names, body), struct.calcsize(layout)
        own.update({name: own[name].split(b"\0")[0].decode(errors="replace") for name in own.keys() & {"comm"}})
        for length in own.keys() & {"name_len", "expr_len"}:
            demand(own[length] <= min(len(body) - behind, 400), "a text is too long")
            own["text"] = body[behind:behind + own[length]].decode(errors="replace")
        yield {"record": "event", "event": name, **e, "own": own}
        at += e["size"]


def records(stream, header):
    for at, p, content in stream:
        try:
            found = list((references if p["kind"] in (REF, CONTEXT) else events)(p, unpack(p, content, header), header))
            numbers = [len(found), *(record["seq"] for record in found[:1] + found[-1:])]
            demand(numbers == [p["records"], p["first_seq"], p["last_seq"]], "its head contradicts its records")
            yield from found
        except ImportError:
            sys.exit("reader: the trace has compressed packets, so Python's package zstandard is needed")
        except Exception as bad:  # whatever the content of a packet leads to costs that packet only
            report(at, f"a packet is damaged: {bad!r}")


def read_trace(data):
    """Yields all records of a trace, a piece or a part, in order."""
    header, streams, contents, counts = read_header(data), {}, {}, {"reference": 0, "event": 0, "context": 0}
    for at, p, content in packets(data, header):
        p["kind"] in NAMED or report(at, f"a packet of the unknown kind {p['kind']}")
        streams.setdefault((p["kind"], p["cpu"], p["set"] * (p["kind"] == REF)), []).append((at, p, content))
        contents[p["kind"]] = content
    word = lambda kind, at, default=0: struct.unpack_from("<Q", contents[kind], at)[0] if kind in contents else default
    first, state_seq, next_seq = word(PIECE, 8), word(PIECE, 32) or MOST, word(PIECE_END, 24, MOST)
    of_records = [records(stream, header) for key, stream in streams.items() if key[0] in (REF, EVENT, STATE, CONTEXT)]
    for record in heapq.merge(*of_records, key=lambda record: record["seq"]):
        is_own, is_event = first <= record["seq"] < next_seq, record["record"] == "event"
        counts[record["record"]] += is_own
        if is_own or is_event and (record["flags"] & 2 or state_seq <= record["seq"] < first):
            yield record
    last, at = (PIECE_END, 64) if header["features"] & PIECES else (END, 80)
    if last not in contents:
        report(len(data), "the trace was cut short: its last packet is missing")
    elif [word(last, at), word(last, at + 8)] != [counts["reference"], counts["event"]]:
        report(len(data), "records are missing: the account has other numbers of them")


if __name__ == "__main__":
    len(sys.argv) == 2 or sys.exit(__doc__)
    try:
        with open(sys.argv[1], "rb") as file:
            sys.stdout.writelines(json.dumps(record) + "\n" for record in read_trace(file.read()))
    except (ValueError, OSError) as error:
        report(0, error)
    sys.exit(1 if PROBLEMS else 0)
