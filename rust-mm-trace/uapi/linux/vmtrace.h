/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * Virtual memory reference tracing: ioctls of /dev/vmtrace and the layout of
 * the trace stream. See Documentation/mm/vmtrace.rst.
 *
 * A trace is one stream of bytes, little-endian throughout:
 *
 *   struct vmtrace_header (VMTRACE_HEADER_SIZE bytes)
 *   { struct vmtrace_packet, content } ...
 *   the packet of stream kind VMTRACE_STREAM_END, whose content is a
 *   struct vmtrace_status: what the kernel counted. A stream without it was
 *   cut short.
 *
 * Packets of several streams (one per CPU, kind and set) are interleaved as they
 * fill. Within a stream packets and records are in order of vmtrace_packet.seq
 * and of the record's sequence number. References and events share one
 * sequence, so merging all streams by it gives the total order. With several
 * EVMSs (vmtrace_header.sets), a stream is that of one CPU, kind and set. Its packets
 * may stand behind packets of other streams with much greater numbers, for a set
 * whose programs rest keeps its last records.
 *
 * A trace may have windows: then nothing is traced before the first, between
 * them and after the last (but see VMTRACE_REGIONS). Each begins with an empty EVMS and
 * with events of what exists, from VMTRACE_EV_SNAP_BEGIN on, and ends with a packet of
 * stream kind VMTRACE_STREAM_WINDOW. No packet spans two of them, and no number of an address
 * space is in two of them.
 *
 * A trace may be kept in several files, its pieces, each of which is readable by itself:
 * see struct vmtrace_piece.
 */
#ifndef _UAPI_LINUX_VMTRACE_H
#define _UAPI_LINUX_VMTRACE_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define VMTRACE_VERSION		1

/* "kVMTrace" and "VMTpackt" as little-endian words. */
#define VMTRACE_MAGIC		0x65636172544d566bULL
#define VMTRACE_PACKET_MAGIC	0x746b636170544d56ULL

#define VMTRACE_HEADER_SIZE	4096
#define VMTRACE_NAME_MAX	255

/*
 * The smallest first segment: what one instruction can need at once (two code
 * pages, operands that cross pages, a shadow stack, a signal frame with a large XSAVE area).
 */
#define VMTRACE_FIRST_MIN	16
/* The smallest EVMS has first segments for so many CPUs, or for all there are. */
#define VMTRACE_EVMS_MIN_CPUS	2
#define VMTRACE_EVMS_MAX	(1 << 22)

/* vmtrace_config.batch: the largest K, and the largest default of K */
#define VMTRACE_BATCH_MAX	64
#define VMTRACE_BATCH_DEFAULT	13

/* vmtrace_header.features and vmtrace_config.flags */
#define VMTRACE_AGAIN		(1 << 0) /* VMTRACE_REF_AGAIN is recorded */
/* Records carry virtual time: a __u64 after each vmtrace_ref and vmtrace_event. */
#define VMTRACE_VTIME		(1 << 1)
#define VMTRACE_EARLY		(1 << 2) /* from boot; START: take that trace */
/* Packets may be packed: see vmtrace_packet.codec. */
#define VMTRACE_PACK		(1 << 3)
/* References carry the offset of the access: a __u64 at the end of each vmtrace_ref. */
#define VMTRACE_OFFSETS		(1 << 4)
/* With VMTRACE_PACK: what is packed may be compressed, too. */
#define VMTRACE_ZSTD		(1 << 5)
/* Windows begin and end on request: VMTRACE_IOC_WINDOW. */
#define VMTRACE_PAUSABLE	(1 << 6)
/* References may be left out: see struct vmtrace_filter. */
#define VMTRACE_FILTERED	(1 << 7)
/* References are counted by process and mapping: VMTRACE_IOC_COUNTS. */
#define VMTRACE_COUNTED		(1 << 8)
/*
 * Nothing is written: who traces wants counts only. What the status has as written is what
 * would have been. Not with VMTRACE_PACK.
 */
#define VMTRACE_UNWRITTEN	(1 << 9)
/*
 * Regions of memory are sampled, and no reference is recorded: see struct vmtrace_sampling.
 * No other flags may be set with it, except VMTRACE_PACK, VMTRACE_ZSTD, VMTRACE_PIECE and
 * VMTRACE_UNWRITTEN. There is one EVMS, and no filter or interval.
 *
 * There may be windows all the same, of two kinds. Those of references are the windows that
 * vmtrace_header is about: the EVMS records references as in any trace, and regions are not
 * sampled. Such a window has VMTRACE_EV_REFS_BEGIN. In the time before each of them, regions are
 * sampled in windows of their own, and so they are behind the last one until another one
 * is asked for. VMTRACE_PAUSABLE, VMTRACE_AGAIN, VMTRACE_VTIME, VMTRACE_OFFSETS,
 * VMTRACE_FILTERED and VMTRACE_COUNTED may be set then, and are about references.
 */
#define VMTRACE_REGIONS		(1 << 10)
/*
 * vmtrace_header.features: the file is a piece of a trace, see struct vmtrace_piece. That
 * of the whole trace does not have it. vmtrace_config.flags: write the trace in pieces,
 * see VMTRACE_IOC_ROTATE.
 */
#define VMTRACE_PIECE		(1 << 16)

/*
 * vmtrace_header.classes, vmtrace_config.classes and vmtrace_status.classes:
 * events beyond those that the identity of pages needs, which are always logged.
 */
#define VMTRACE_CLASS_FILE	(1 << 0) /* OPEN, CLOSE */
#define VMTRACE_CLASS_IO	(1 << 1) /* READ, WRITE */
#define VMTRACE_CLASS_SHM	(1 << 2) /* SHMAT, SHMDT, SHM_DESTROY */
#define VMTRACE_CLASS_GUP	(1 << 3) /* GUP */
#define VMTRACE_CLASS_SWAP	(1 << 4) /* SWAP_IN, SWAP_OUT */
#define VMTRACE_CLASS_FRAME	(1 << 5) /* KSM, MIGRATE */
#define VMTRACE_CLASS_SWITCH	(1 << 6) /* SWITCH */
#define VMTRACE_CLASSES		(VMTRACE_CLASS_FILE | VMTRACE_CLASS_IO | \
				 VMTRACE_CLASS_SHM | VMTRACE_CLASS_GUP | \
				 VMTRACE_CLASS_SWAP | VMTRACE_CLASS_FRAME | \
				 VMTRACE_CLASS_SWITCH)
/* What simulations need. The others describe the machine. */
#define VMTRACE_CLASSES_USUAL	(VMTRACE_CLASS_FILE | VMTRACE_CLASS_IO | \
				 VMTRACE_CLASS_SHM | VMTRACE_CLASS_GUP)

/*
 * vmtrace_header.loss_mode, vmtrace_config.mode and vmtrace_status.mode: what becomes of a
 * record that finds no room, because the output takes records more slowly than they come
 */
#define VMTRACE_MODE_BLOCK	0 /* its task waits, and no record is lost */
/* It is dropped and counted by lost_full, or lost_atomic. No task waits. */
#define VMTRACE_MODE_DISCARD	1

/* vmtrace_header.policy and vmtrace_config.policy: of the second segment */
#define VMTRACE_POLICY_FIFO	0
#define VMTRACE_POLICY_CLOCK	1	/* implies VMTRACE_AGAIN */

/* What is traced. */
#define VMTRACE_SCOPE_ALL	1	/* every address space but the caller's */
#define VMTRACE_SCOPE_TREE	2	/* one process and all it forks */
/*
 * The processes of a control group (version 2) and of those below it, and all that they
 * fork: those that are there when the trace or a window begins, that are made there or moved
 * there, and that execute a program there. Who is traced stays so, even if moved elsewhere.
 */
#define VMTRACE_SCOPE_CGROUP	3
/*
 * Processes whose names fit a pattern, and all that they fork. A process has the name of its
 * first thread, as in /proc/PID/comm. It may get that name later: see above.
 */
#define VMTRACE_SCOPE_COMM	4
/*
 * With both, the process that starts the trace is left out, with what it forks until that
 * executes a program.
 */

/*
 * vmtrace_header.sets, vmtrace_config.sets and vmtrace_status.sets: what has an EVMS of
 * its own. Each one has N pages, admissions of its own, and a number from 1 on, which is
 * never used again in a trace. Set 0 is that of all address spaces that have no other.
 */
#define VMTRACE_SETS_ONE	0	/* there is only set 0 */
#define VMTRACE_SETS_PROCESS	1	/* each address space */
/*
 * Each control group (version 2) in which an address space is made, or is at the
 * snapshot. An address space stays in its set, even if its tasks are moved.
 */
#define VMTRACE_SETS_CGROUP	2

/* vmtrace_header.forced_off: features held off for traced address spaces. */
#define VMTRACE_OFF_PMD_THP	(1 << 0)
#define VMTRACE_OFF_PMD_MOVE	(1 << 1)
#define VMTRACE_OFF_NUMA	(1 << 2) /* NUMA hinting faults */

/* vmtrace_header.clock */
#define VMTRACE_CLOCK_MONOTONIC	1

/*
 * vmtrace_header.vtime_clock: what virtual time is counted by. It is the time
 * that a task has spent in user mode, in ticks: neither the kernel's time counts,
 * with all faults, nor the time that others ran. It begins with 0 for a task that
 * is made while it is counted; of others, only differences mean something.
 */
#define VMTRACE_VTIME_TSC	1	/* x86's time stamp counter */

/* The virtual time of an event's task, if that is not the task that logs it. */
#define VMTRACE_VTIME_NONE	(~0ULL)

/* The offset of a reference whose address is not known. */
#define VMTRACE_OFFSET_NONE	(1ULL << 63)

/* vmtrace_sampling.by: what shows that a page was accessed */
/* The accessed bit of its page table entry. What was written is not known. */
#define VMTRACE_BY_ACCESSED	0
/*
 * Its entry is disabled, and the next access faults: the fault also shows whether that is a
 * write, and the CPU. Pages of a transparent or another huge page are looked at by
 * its accessed bit.
 */
#define VMTRACE_BY_FAULT	1

/**
 * struct vmtrace_sampling - how regions of memory are sampled
 * @sample: from one look at a page of each region to the next, ns
 * @aggregate: after so long, what the looks have found is reported, and regions are merged
 *	and split, ns
 * @update: after so long, regions are adapted to the mappings there are, ns
 * @min_regions: of each address space, as far as it has as many pages
 * @max_regions: likewise; at least twice @min_regions
 * @by: VMTRACE_BY_ACCESSED or VMTRACE_BY_FAULT
 * @change: with VMTRACE_PAUSABLE, a window of references begins when so many thousandths of
 *	the memory in use have changed from one report to the next, in all address spaces
 *	together; at most VMTRACE_CHANGE_MAX. 0: on request only. A region is in use if at
 *	least four fifths of its looks have found an access, and idle if at most a fifth has.
 *	It has changed if it is the one now, and was the other in one of the two intervals
 *	before. The first reports after a window of references do not count
 *
 * An address space has regions, in each of which one page is looked at: a random one each
 * time. So a region's share of looks that found an access is an estimate for all of its pages.
 * Neighbours with like shares are merged, and regions are split at random places, which is
 * DAMON's algorithm (mm/damon). The regions are reported by VMTRACE_EV_REGION.
 *
 * An address without a page when a look begins counts as accessed if it has a page when the
 * look ends, and the accessed bit of that page is set. The fault that mapped the page has set
 * the bit, or a fault on a page nearby that mapped this one, too. Accesses by DMA, and by the kernel to pages that it has
 * pinned, are not seen. An address space that begins and ends between two times of @update
 * is not reported, and neither is the last part of an interval of @aggregate in which one
 * ends.
 */
struct vmtrace_sampling {
	__u64 sample;
	__u64 aggregate;
	__u64 update;
	__u32 min_regions;
	__u32 max_regions;
	__u32 by;
	__u32 change;
};

/**
 * struct vmtrace_header - the first VMTRACE_HEADER_SIZE bytes of a trace
 * @magic: VMTRACE_MAGIC
 * @version: VMTRACE_VERSION; a reader refuses what it does not know
 * @header_size: VMTRACE_HEADER_SIZE
 * @uuid: identity of the trace, repeated in every packet
 * @start_time: time of the start, in @clock's ns
 * @realtime_offset: add to a time to get ns since the Unix epoch
 * @features: bits of recorded extras
 * @evms_size: N, the greatest number of pages enabled at once, at the start
 * @first_segment: admissions in the first segment of each CPU
 * @policy: VMTRACE_POLICY_*, of the second segment
 * @scope: VMTRACE_SCOPE_*
 * @scope_pid: pid of the tree's root with VMTRACE_SCOPE_TREE, or 0
 * @page_shift: log2 of the page size
 * @nr_cpus: number of possible CPUs, the number of streams of each kind. A CPU that
 *	was offline at the start has no buffers: its records go into the stream of
 *	another.
 * @clock: VMTRACE_CLOCK_*
 * @forced_off: VMTRACE_OFF_*
 * @loss_mode: VMTRACE_MODE_*
 * @buffer_size: bytes of one sub-buffer, the largest packet
 * @nr_buffers: sub-buffers of each stream
 * @stay_shift: unit of vmtrace_ref.stay is (1 << @stay_shift) ns
 * @debug_break: protections taken away for a negative control; 0 in a trace
 *	that means anything
 * @release: kernel release, as uname -r
 * @arch: machine, as uname -m
 * @reserved: zero
 * @sampling: with VMTRACE_REGIONS, as configured; else zero
 * @interval: all stays end each so many ns, as far as they began before; 0: they do not. A
 *	trace with windows has such moments within windows only. A moment may be late, and
 *	those that have passed meanwhile are left out
 * @scope_name: with VMTRACE_SCOPE_CGROUP, the path of the group, as in VMTRACE_EV_CGROUP;
 *	with VMTRACE_SCOPE_COMM, the pattern; or empty. NUL-terminated; may be cut off
 * @sets: VMTRACE_SETS_*. With more than one, @evms_size, @batch and what follows from
 *	them are about each set and the admissions to it.
 * @batch: K, the largest number of pages that one admission evicts; 0 means 1. When
 *	there have been N admissions, the EVMS has from N - K + 1 to N pages.
 * @window_time: length of a window, ns; 0: as @window_refs says
 * @window_refs: references in a window, without those that a filter leaves out; 0: as
 *	@window_time says. With neither, and
 *	without VMTRACE_PAUSABLE, the trace has no windows; with both, what comes first
 *	ends a window.
 * @warmup: time before the first window, ns
 * @skip: time from the end of a window to the beginning of the next, ns. There are
 *	no faults meanwhile that could count references. With VMTRACE_REGIONS and
 *	VMTRACE_PAUSABLE, the shortest time from the end of a window of references, or from the
 *	start, to the beginning of the next one that begins because of a change.
 * @windows: how many there are to be; 0: as many as there come until STOP
 * @vtime_clock: VMTRACE_VTIME_*; this and the next two are 0 without VMTRACE_VTIME
 * @vtime_khz: ticks in a millisecond
 * @vtime_skip: ticks taken off for each fault and interrupt, as configured
 * @classes: VMTRACE_CLASS_*
 * @crc: CRC32C of the bytes before it
 */
struct vmtrace_header {
	__u64 magic;
	__u32 version;
	__u32 header_size;
	__u8 uuid[16];
	__u64 start_time;
	__s64 realtime_offset;
	__u64 features;
	__u32 evms_size;
	__u32 first_segment;
	__u32 policy;
	__u32 scope;
	__s32 scope_pid;
	__u32 page_shift;
	__u32 nr_cpus;
	__u32 clock;
	__u32 forced_off;
	__u32 loss_mode;
	__u32 buffer_size;
	__u32 nr_buffers;
	__u32 stay_shift;
	__u32 debug_break;
	char release[128];
	char arch[64];
	__u8 reserved[3424];
	struct vmtrace_sampling sampling;
	__u64 interval;
	char scope_name[256];
	__u32 sets;
	__u32 batch;
	__u64 window_time;
	__u64 window_refs;
	__u64 warmup;
	__u64 skip;
	__u32 windows;
	__u32 vtime_clock;
	__u32 vtime_khz;
	__u32 vtime_skip;
	__u32 classes;
	__u32 crc;
};

/*
 * vmtrace_packet.codec: how the content is stored. Bits. What is packed is compressed after
 * that.
 */
/*
 * Events as what differs from earlier ones. References as struct vmtrace_packed, in the
 * first form, which is no longer written
 */
#define VMTRACE_CODEC_PACK	(1 << 0)
#define VMTRACE_CODEC_ZSTD	(1 << 1) /* one frame of Zstandard (RFC 8878) */
/* In place of VMTRACE_CODEC_PACK: references as struct vmtrace_packed, in the second form */
#define VMTRACE_CODEC_PACK2	(1 << 2)

/* vmtrace_packet.kind */
#define VMTRACE_STREAM_REF	1	/* content: struct vmtrace_ref [] */
#define VMTRACE_STREAM_EVENT	2	/* content: struct vmtrace_event ... */
#define VMTRACE_STREAM_END	3	/* content: struct vmtrace_status */
#define VMTRACE_STREAM_WINDOW	4	/* content: struct vmtrace_window */
/* Only in a piece, and not packets of the trace: see struct vmtrace_piece */
#define VMTRACE_STREAM_PIECE	16	/* content: struct vmtrace_piece */
#define VMTRACE_STREAM_STATE	17	/* content: struct vmtrace_event ... */
#define VMTRACE_STREAM_OWN	18	/* no content */
#define VMTRACE_STREAM_PIECE_END 19	/* content: struct vmtrace_piece_end */

/**
 * struct vmtrace_packet - head of a packet
 * @magic: VMTRACE_PACKET_MAGIC
 * @uuid: that of the header
 * @kind: VMTRACE_STREAM_*
 * @codec: VMTRACE_CODEC_*; 0: the content is stored as it is
 * @cpu: the stream, by its CPU; its records may be of other CPUs
 * @seq: number of the packet within its stream, from 0, without a gap
 * @first_seq: sequence number of the first record, base of vmtrace_ref.seq
 * @last_seq: sequence number of the last record
 * @first_time: base of vmtrace_ref.time, ns: no record of the packet is earlier. It is
 *	the time of the first record, except for references on several CPUs
 * @last_time: the latest time of a record
 * @lost_full: records lost in this stream before this packet for want of room
 * @lost_atomic: of events: those lost in this stream before this packet where the
 *	kernel could not wait for room
 * @set: of references: the EVMS that they are of
 * @lost_io: records of earlier packets of this stream that could not be
 *	written
 * @raw_size: bytes of the content before it was packed; 0 if @codec is 0
 * @records: records in the content
 * @content_size: bytes that follow the head: the content as it is stored
 * @window: ordinal of the window, from 0; 0 in a trace without windows
 * @crc: CRC32C of the head with this field zero, then of the content as it is stored
 */
struct vmtrace_packet {
	__u64 magic;
	__u8 uuid[16];
	__u16 kind;
	__u16 codec;
	__u32 cpu;
	__u64 seq;
	__u64 first_seq;
	__u64 last_seq;
	__u64 first_time;
	__u64 last_time;
	__u64 lost_full;
	union {
		__u64 lost_atomic;
		__u64 set;
	};
	__u32 lost_io;
	__u32 raw_size;
	__u32 records;
	__u32 content_size;
	__u32 window;
	__u32 crc;
};

/**
 * struct vmtrace_packed - what packed references begin with
 * @numbers: bytes of the column of numbers
 * @time: vmtrace_ref.time of the first record
 * @tid_cpu: vmtrace_ref.tid_cpu of the first record
 * @lag: in bits 0..23, N, or 0 if times are not foretold by ends of stays, as in the first
 *	form if N is above 8192; in bits 24..31, header.stay_shift
 *
 * Three columns follow: a token for each record; numbers; and pages, which are read from
 * the end to the beginning. Documentation/mm/vmtrace.rst describes them.
 */
struct vmtrace_packed {
	__u32 numbers;
	__u32 time;
	__u32 tid_cpu;
	__u32 lag;
};

/* vmtrace_window.why: what ended it */
#define VMTRACE_WINDOW_TIME	0	/* header.window_time */
#define VMTRACE_WINDOW_REFS	1	/* header.window_refs */
#define VMTRACE_WINDOW_STOP	2	/* VMTRACE_IOC_STOP */
#define VMTRACE_WINDOW_PAUSE	3	/* VMTRACE_IOC_WINDOW */
/* Of regions: a window of references follows. */
#define VMTRACE_WINDOW_CHANGE	4	/* for vmtrace_sampling.change */
#define VMTRACE_WINDOW_RESUME	5	/* for VMTRACE_IOC_WINDOW */
/* Of regions: another one follows, in the next piece. */
#define VMTRACE_WINDOW_PIECE	6
#define VMTRACE_WINDOW_OVER	7	/* Of regions: VMTRACE_IOC_STOP */
/* Of regions: a window of references follows, by header.warmup or header.skip. */
#define VMTRACE_WINDOW_NEXT	8

/**
 * struct vmtrace_window - the end of a window: what the kernel counted in it
 * @number: ordinal, from 0
 * @why: VMTRACE_WINDOW_*
 * @start_time: ns, CLOCK_MONOTONIC
 * @stop_time: ns
 * @first_seq: its first record's sequence number, or a smaller one
 * @last_seq: its last record's sequence number, or a greater one
 * @admissions: as in struct vmtrace_status, and so are all below. Conservation:
 *	@admissions + @renewed + @chances == @refs + @lost_full + @lost_io
 *	(references' part). With VMTRACE_FILTERED, what is missing on the right side was
 *	left out.
 * @refs: reference records written
 * @events: event records written
 * @aborted: sequence numbers given up
 * @renewed: records ended by VMTRACE_WHY_RENEWED
 * @chances: records ended by VMTRACE_WHY_CHANCE
 * @lost_full: records lost for want of room
 * @lost_atomic: events lost where the kernel could not wait
 * @lost_io: records lost because the output failed
 * @funny: accessible pages found outside the EVMS
 */
struct vmtrace_window {
	__u32 number;
	__u32 why;
	__u64 start_time;
	__u64 stop_time;
	__u64 first_seq;
	__u64 last_seq;
	__u64 admissions;
	__u64 refs;
	__u64 events;
	__u64 aborted;
	__u64 renewed;
	__u64 chances;
	__u64 lost_full;
	__u64 lost_atomic;
	__u64 lost_io;
	__u64 funny;
};

/* vmtrace_piece.flags and vmtrace_piece_end.flags */
/* It begins where neither the trace nor a window does, so it has a description. */
#define VMTRACE_PIECE_MIDDLE	(1 << 0)
#define VMTRACE_PIECE_LAST	(1 << 1) /* no piece follows */
/* Its description is a checkpoint, and all EVMSs are empty where it begins. */
#define VMTRACE_PIECE_CHECKPOINT (1 << 2)

/**
 * struct vmtrace_piece - which piece of a trace a file is
 * @number: ordinal, from 0
 * @flags: VMTRACE_PIECE_MIDDLE, and with that maybe VMTRACE_PIECE_CHECKPOINT
 * @first_seq: the records of the piece have this sequence number or a greater one
 * @offset: bytes of the trace before the piece's own part, which are the header and the
 *	own parts of all earlier pieces
 * @crc: CRC32C of these bytes
 * @pad: zero
 * @state_seq: with VMTRACE_PIECE_CHECKPOINT, the number of the event
 *	VMTRACE_EV_CHECKPOINT that begins the description; else 0
 *
 * A piece consists of
 *
 *   the trace's header, with VMTRACE_PIECE in its features
 *   the packet of kind VMTRACE_STREAM_PIECE
 *   with VMTRACE_PIECE_MIDDLE and without VMTRACE_PIECE_CHECKPOINT: packets of kind
 *   VMTRACE_STREAM_STATE, the description
 *   copies of packets of earlier pieces
 *   the packet of kind VMTRACE_STREAM_OWN
 *   the own part: the bytes of the trace from @offset on
 *   copies of packets of later pieces
 *   the packet of kind VMTRACE_STREAM_PIECE_END. A piece without it was cut short.
 *
 * The header and the own parts of all pieces, in order, are the trace, byte for byte. An
 * own part may begin between any two packets. The records of a piece are those with
 * sequence numbers from @first_seq to before vmtrace_piece_end.next_seq. So each record
 * is of one piece. A packet has records of several pieces if it spans a boundary, or
 * stands late in the trace: each other piece that has records of it contains a copy of
 * the packet, before or behind the own part, so that packets of a stream stay in order.
 * A reader of one piece leaves out all other records, and packets that have none of the
 * piece's.
 *
 * The description in packets of kind VMTRACE_STREAM_STATE is made afterwards, by whoever
 * splits a trace. It consists of events with VMTRACE_EVF_SNAPSHOT and VMTRACE_EVF_STATE,
 * as they follow VMTRACE_EV_SNAP_BEGIN at the beginning of a window: of all address
 * spaces, mappings, tasks, control groups and open files that existed at @first_seq, and of
 * N before that if N is not that of the header. Their sequence number is @first_seq - 1,
 * and no later event of their CPU has an earlier time.
 *
 * The kernel, which does not know what its own events amount to, describes what exists by a
 * checkpoint: events of the trace with VMTRACE_EVF_CHECKPOINT, from VMTRACE_EV_CHECKPOINT to
 * VMTRACE_EV_CHECKPOINT_END. Things change meanwhile, so a checkpoint is read together with
 * all other events from @state_seq to before @first_seq. Among the copies of packets of
 * earlier pieces are all that have such events. When all of the checkpoint is logged, all
 * stays end by VMTRACE_WHY_PIECE, and @first_seq is the next number after that. So a
 * reader of the piece lacks nothing, as at the beginning of a window.
 *
 * In a trace with windows, the kernel begins pieces between windows, where nothing is to be
 * described.
 */
struct vmtrace_piece {
	__u32 number;
	__u32 flags;
	__u64 first_seq;
	__u64 offset;
	__u32 crc;
	__u32 pad;
	__u64 state_seq;
};

/**
 * struct vmtrace_piece_end - the end of a piece: what it has
 * @number: as in struct vmtrace_piece
 * @flags: VMTRACE_PIECE_LAST
 * @size: bytes of the own part
 * @crc: CRC32C of the bytes of the trace up to the end of the own part
 * @unaccounted: 0 in a piece of a good trace. Otherwise packets that streams lack before
 *	their packets in this piece, and in the last piece also figures of the trace's
 *	account that differ from what all pieces have
 * @next_seq: the next piece's @first_seq; of the last piece, the number after the last
 *	one that was given out
 * @start_time: ns, of the description, or of the beginning of the trace or the window, or a
 *	moment before that window
 * @stop_time: ns, the latest time of the piece's records, or a later one
 * @packets: packets with records of the piece, and of kind VMTRACE_STREAM_WINDOW with a
 *	number of the piece, whether they are copies or not
 * @admissions: records that begin a stay. Conservation:
 *	@admissions + @renewed + @chances == @refs.
 * @refs: records of references
 * @events: events, without the description
 * @aborted: sequence numbers from @first_seq to before @next_seq that have no record,
 *	and were not lost; with VMTRACE_FILTERED, these are also those that were left out
 * @renewed: records that continue a stay (VMTRACE_REF_CONT)
 * @chances: records of second chances (VMTRACE_REF_SEEN)
 * @lost_full: records lost for want of room
 * @lost_atomic: events lost where the kernel could not wait
 * @lost_io: records lost because the output failed
 */
struct vmtrace_piece_end {
	__u32 number;
	__u32 flags;
	__u64 size;
	__u32 crc;
	__u32 unaccounted;
	__u64 next_seq;
	__u64 start_time;
	__u64 stop_time;
	__u64 packets;
	__u64 admissions;
	__u64 refs;
	__u64 events;
	__u64 aborted;
	__u64 renewed;
	__u64 chances;
	__u64 lost_full;
	__u64 lost_atomic;
	__u64 lost_io;
};

/* vmtrace_ref.page: page address in the high bits, these in the low 12. */
#define VMTRACE_REF_KIND	0x003	/* of the admitting access: */
#define VMTRACE_REF_READ	0x000
#define VMTRACE_REF_WRITE	0x001
#define VMTRACE_REF_EXEC	0x002
#define VMTRACE_REF_SEEN	0x003	/* unknown: after a second chance */
#define VMTRACE_REF_KERNEL	0x004	/* by the kernel (uaccess) */
#define VMTRACE_REF_DIRTIED	0x008	/* a store was made or begun in this stay */
#define VMTRACE_REF_AGAIN	0x010	/* referenced in the second segment */
#define VMTRACE_REF_WHY		0x1e0	/* why it ended: VMTRACE_WHY_* << 5 */
#define VMTRACE_REF_WHY_SHIFT	5
#define VMTRACE_REF_CONT	0x200	/* no reference: the last stay goes on */
/* Only in a trace of a negative control: the filter would have left it out. */
#define VMTRACE_REF_LEFT	0x400
#define VMTRACE_REF_FLAGS	0xfff

#define VMTRACE_WHY_EVICTED	0	/* N - K + 1 to N later admissions */
#define VMTRACE_WHY_UNMAPPED	1	/* munmap, or a mapping over it */
#define VMTRACE_WHY_COW		2	/* replaced by its own copy */
#define VMTRACE_WHY_PROTECTED	3	/* protection changed */
#define VMTRACE_WHY_RECLAIMED	4	/* unmapped by reclaim */
#define VMTRACE_WHY_MOVED	5	/* mremap */
#define VMTRACE_WHY_EXIT	6	/* the address space ended */
#define VMTRACE_WHY_DRAINED	7	/* tracing stopped */
#define VMTRACE_WHY_MIGRATED	8	/* moved to another page frame */
#define VMTRACE_WHY_ADVISED	9	/* madvise: DONTNEED, FREE, ... */
#define VMTRACE_WHY_TRUNCATED	10	/* the file lost the page */
#define VMTRACE_WHY_OTHER	11	/* cleared or replaced, other reasons */
#define VMTRACE_WHY_RENEWED	12	/* goes on: its CPU may need it (_CONT) */
#define VMTRACE_WHY_CHANCE	13	/* goes on: it was referenced (_SEEN) */
#define VMTRACE_WHY_PIECE	14	/* another piece of the trace began */
#define VMTRACE_WHY_INTERVAL	15	/* an interval ended: header.interval */

#define VMTRACE_STAY_SHIFT	6

/**
 * struct vmtrace_ref - a record: one stay in the EVMS, or a part of it
 * @page: virtual page address and VMTRACE_REF_* flags
 * @seq: admission's sequence number less vmtrace_packet.first_seq
 * @time: admission's time less vmtrace_packet.first_time, ns. A CPU reads the time
 *	before it takes a sequence number, and may be interrupted in between. So times
 *	of references of one CPU do not decrease, but those of several CPUs may, in
 *	the order of sequence numbers. Where a stay goes on, the time is of the CPU
 *	that took its place, which is not in the record
 * @tid_cpu: thread id in bits 0..21, CPU in bits 22..31
 * @mm: address space, a number that is never used again in a trace
 * @stay: length of the stay in units of header.stay_shift, saturating
 * @pfn: page frame number, saturating
 *
 * A record without VMTRACE_REF_CONT is a reference. One with it continues a stay
 * whose last record ended by VMTRACE_WHY_RENEWED.
 *
 * With VMTRACE_VTIME, the task's virtual time at the admission follows. In a record
 * that continues a stay (VMTRACE_REF_CONT, VMTRACE_REF_SEEN) it is that of the
 * stay's first admission.
 *
 * With VMTRACE_OFFSETS, the offset of the admitting access within @page follows, after the
 * virtual time if there is one: bytes, less than the size of the page, which may be a huge
 * one. A record with VMTRACE_REF_CONT has that of the stay's first admission. It is
 * VMTRACE_OFFSET_NONE if the kind of the access is VMTRACE_REF_SEEN, for only the accessed
 * bit has shown the access.
 */
struct vmtrace_ref {
	__u64 page;
	__u32 seq;
	__u32 time;
	__u32 tid_cpu;
	__u32 mm;
	__u32 stay;
	__u32 pfn;
};

#define VMTRACE_TID_BITS	22

/* vmtrace_event.type */
#define VMTRACE_EV_MAP		1	/* struct vmtrace_ev_map */
#define VMTRACE_EV_UNMAP	2	/* struct vmtrace_ev_range */
#define VMTRACE_EV_MOVE		3	/* struct vmtrace_ev_move */
#define VMTRACE_EV_PROTECT	4	/* struct vmtrace_ev_range */
#define VMTRACE_EV_ADVISE	5	/* struct vmtrace_ev_range */
#define VMTRACE_EV_COW		6	/* struct vmtrace_ev_page */
#define VMTRACE_EV_MM_DUP	7	/* struct vmtrace_ev_mm_dup */
#define VMTRACE_EV_MM_END	8	/* no payload */
#define VMTRACE_EV_FORK		16	/* struct vmtrace_ev_fork */
#define VMTRACE_EV_EXEC		17	/* struct vmtrace_ev_exec */
#define VMTRACE_EV_EXIT		18	/* struct vmtrace_ev_exit */
#define VMTRACE_EV_TASK		19	/* struct vmtrace_ev_task */
#define VMTRACE_EV_SWITCH	20	/* struct vmtrace_ev_switch */
#define VMTRACE_EV_CGROUP	21	/* struct vmtrace_ev_cgroup */
#define VMTRACE_EV_SHMAT	32	/* struct vmtrace_ev_shm */
#define VMTRACE_EV_SHMDT	33	/* struct vmtrace_ev_shm */
#define VMTRACE_EV_SHM_DESTROY	34	/* struct vmtrace_ev_shm */
#define VMTRACE_EV_OPEN		48	/* struct vmtrace_ev_file */
#define VMTRACE_EV_CLOSE	49	/* struct vmtrace_ev_file */
#define VMTRACE_EV_READ		50	/* struct vmtrace_ev_io */
#define VMTRACE_EV_WRITE	51	/* struct vmtrace_ev_io */
#define VMTRACE_EV_TRUNCATE	52	/* struct vmtrace_ev_io */
#define VMTRACE_EV_PUNCH	53	/* struct vmtrace_ev_io */
#define VMTRACE_EV_DELETE	54	/* struct vmtrace_ev_io */
#define VMTRACE_EV_SWAP_IN	64	/* struct vmtrace_ev_page */
#define VMTRACE_EV_SWAP_OUT	65	/* struct vmtrace_ev_page */
#define VMTRACE_EV_KSM		66	/* struct vmtrace_ev_page */
#define VMTRACE_EV_MIGRATE	67	/* struct vmtrace_ev_page */
#define VMTRACE_EV_GUP		80	/* struct vmtrace_ev_page */
#define VMTRACE_EV_RESIZE	83	/* struct vmtrace_ev_resize */
#define VMTRACE_EV_SET		84	/* struct vmtrace_ev_set */
#define VMTRACE_EV_FILTER	85	/* struct vmtrace_ev_filter */
#define VMTRACE_EV_REGION	86	/* struct vmtrace_ev_region */
#define VMTRACE_EV_SNAP_BEGIN	96	/* no payload */
#define VMTRACE_EV_SNAP_END	97	/* no payload */
/*
 * No payload. References are recorded from it on; without one, all the time. In a trace with
 * VMTRACE_REGIONS, they are recorded in windows only that have one, behind SNAP_BEGIN.
 */
#define VMTRACE_EV_REFS_BEGIN	98
#define VMTRACE_EV_CHECKPOINT	99	/* struct vmtrace_ev_checkpoint */
/* No payload. A checkpoint without it was given up. */
#define VMTRACE_EV_CHECKPOINT_END 100

/* vmtrace_event.flags */
#define VMTRACE_EVF_SNAPSHOT	(1 << 0) /* describes what already existed */
#define VMTRACE_EVF_STATE	(1 << 1) /* of a piece's description */
/* Describes what earlier events of the trace have described, see VMTRACE_EV_CHECKPOINT */
#define VMTRACE_EVF_CHECKPOINT	(1 << 2)

/**
 * struct vmtrace_event - head of an event record
 * @type: VMTRACE_EV_*
 * @size: bytes of head, payload and name, a multiple of 8
 * @flags: VMTRACE_EVF_*
 * @seq: sequence number, absolute
 * @time: ns, absolute
 * @tid: thread that caused the event
 * @tgid: its process
 * @mm: address space that the event is about, 0 if none
 * @cpu: where it happened
 *
 * With VMTRACE_VTIME, the task's virtual time follows, or VMTRACE_VTIME_NONE, and
 * @size counts it.
 */
struct vmtrace_event {
	__u16 type;
	__u16 size;
	__u32 flags;
	__u64 seq;
	__u64 time;
	__u32 tid;
	__u32 tgid;
	__u32 mm;
	__u32 cpu;
};

/* Protections in events: those of mmap(). */
#define VMTRACE_PROT_READ	1
#define VMTRACE_PROT_WRITE	2
#define VMTRACE_PROT_EXEC	4

/* vmtrace_ev_map.flags */
#define VMTRACE_MAP_SHARED	(1 << 0)
#define VMTRACE_MAP_GROWSDOWN	(1 << 1)
#define VMTRACE_MAP_LOCKED	(1 << 2)
#define VMTRACE_MAP_PFN		(1 << 3)  /* no struct pages behind it */
#define VMTRACE_MAP_UNCOVERED	(1 << 4)  /* references here are not traced */
#define VMTRACE_MAP_MERGEABLE	(1 << 5)  /* KSM may merge pages of it */
/*
 * Bits 8 to 15: the size of its pages, which hugetlb has, by log2. 0: that of the
 * header. A record or an event of such a page has the address of its first byte and
 * the first of its frames.
 */
#define VMTRACE_MAP_PAGE_SHIFT	8
#define VMTRACE_MAP_PAGE	(0xff << VMTRACE_MAP_PAGE_SHIFT)

/* vmtrace_ev_map.kind: what is mapped */
#define VMTRACE_MAP_ANON	0
#define VMTRACE_MAP_FILE	1
#define VMTRACE_MAP_SHMEM	2	/* shared anonymous, memfd, tmpfs, SysV */
#define VMTRACE_MAP_DEVICE	3
#define VMTRACE_MAP_SPECIAL	4	/* vdso, vvar, ... */
#define VMTRACE_MAP_HUGETLB	5

/* vmtrace_ev_map.cause: why it came to be */
#define VMTRACE_BY_MMAP		0
#define VMTRACE_BY_BRK		1
#define VMTRACE_BY_STACK	2	/* first stack, or its growth */
#define VMTRACE_BY_MREMAP	3	/* growth in place */
#define VMTRACE_BY_SNAPSHOT	4
#define VMTRACE_BY_SPECIAL	5

/**
 * struct vmtrace_ev_map - a range became mapped; the name follows
 * @start: first byte
 * @end: first byte after
 * @offset: in the file, bytes; for anonymous memory the page offset the kernel
 *	keeps, in bytes
 * @dev: device of the file, major << 20 | minor as in stat
 * @ino: inode
 * @generation: inode's generation
 * @prot: VMTRACE_PROT_*
 * @flags: VMTRACE_MAP_* bits
 * @kind: VMTRACE_MAP_ANON, ...
 * @cause: VMTRACE_BY_*
 * @name_len: bytes of the name that follows, without a NUL, padded to 8
 */
struct vmtrace_ev_map {
	__u64 start;
	__u64 end;
	__u64 offset;
	__u64 dev;
	__u64 ino;
	__u32 generation;
	__u32 prot;
	__u32 flags;
	__u16 kind;
	__u16 cause;
	__u32 name_len;
	__u32 pad;
};

/**
 * struct vmtrace_ev_range - unmap, protect, advise
 * @start: first byte
 * @end: first byte after
 * @arg: PROTECT: new VMTRACE_PROT_*; ADVISE: the advice
 */
struct vmtrace_ev_range {
	__u64 start;
	__u64 end;
	__u64 arg;
};

/**
 * struct vmtrace_ev_resize - N is about to change
 * @from: what it was
 * @to: what it will be
 */
struct vmtrace_ev_resize {
	__u32 from;
	__u32 to;
};

/**
 * struct vmtrace_ev_set - event.mm is in this EVMS from its beginning to its end; not
 * logged for set 0
 * @set: its number
 * @pad: zero
 * @cgroup: with VMTRACE_SETS_CGROUP, the control group's id as the inode number of its
 *	directory; else 0
 */
struct vmtrace_ev_set {
	__u32 set;
	__u32 pad;
	__u64 cgroup;
};

/* vmtrace_ev_move.flags */
#define VMTRACE_MOVE_DONTUNMAP	(1 << 0) /* the old range stays mapped */

/**
 * struct vmtrace_ev_move - mremap moved a range; what lay at the new one was
 * unmapped before
 * @old_start: first byte before the move
 * @old_len: bytes that were there
 * @new_start: first byte after the move
 * @new_len: bytes that are there now; may differ from @old_len
 * @flags: VMTRACE_MOVE_*
 */
struct vmtrace_ev_move {
	__u64 old_start;
	__u64 old_len;
	__u64 new_start;
	__u64 new_len;
	__u64 flags;
};

/* vmtrace_ev_page.arg of VMTRACE_EV_GUP: */
#define VMTRACE_GUP_WRITE	(1 << 0) /* to be written */
#define VMTRACE_GUP_LONGTERM	(1 << 1) /* for as long as somebody wants */

/*
 * vmtrace_ev_page.arg of VMTRACE_EV_SWAP_IN and _OUT: the number of the swap area
 * above, the page within it below.
 */
#define VMTRACE_SWAP_AREA_SHIFT	56

#define VMTRACE_NO_FRAME	(~0ULL)

/**
 * struct vmtrace_ev_page - COW, swap, KSM, migration, GUP
 * @page: virtual page address
 * @old_pfn: frame before, or VMTRACE_NO_FRAME
 * @new_pfn: frame after, or VMTRACE_NO_FRAME
 * @arg: GUP: VMTRACE_GUP_*; swap: see VMTRACE_SWAP_AREA_SHIFT
 *
 * The address space of SWAP_OUT, KSM and MIGRATE may be that of another process than
 * the thread's. fork() copies a page that is pinned at once. That COW is of the new
 * address space, and precedes its MM_DUP. A private huge page that takes the place of
 * no other is a COW without a frame before.
 */
struct vmtrace_ev_page {
	__u64 page;
	__u64 old_pfn;
	__u64 new_pfn;
	__u64 arg;
};

/**
 * struct vmtrace_ev_mm_dup - fork copied an address space: mappings of @parent
 * that fork does not copy are unmapped from the child by events of their own
 * @parent: the copied address space; event.mm is the copy
 * @pad: zero
 */
struct vmtrace_ev_mm_dup {
	__u32 parent;
	__u32 pad;
};

/**
 * struct vmtrace_ev_fork - a task was made; event.tid is its parent
 * @child_tid: its thread id
 * @child_tgid: its process
 * @child_mm: its address space
 * @pad: zero
 * @clone_flags: as clone3() knows them
 * @child_start: as in struct vmtrace_ev_task
 */
struct vmtrace_ev_fork {
	__u32 child_tid;
	__u32 child_tgid;
	__u32 child_mm;
	__u32 pad;
	__u64 clone_flags;
	__u64 child_start;
};

/**
 * struct vmtrace_ev_exec - event.mm is the new address space
 * @old_mm: the one left
 * @name_len: bytes of the file's name that follows, padded to 8
 * @dev: the file, as in struct vmtrace_ev_map
 * @ino: its inode
 * @comm: the task's new name
 * @generation: inode's generation
 * @pad: zero
 */
struct vmtrace_ev_exec {
	__u32 old_mm;
	__u32 name_len;
	__u64 dev;
	__u64 ino;
	char comm[16];
	__u32 generation;
	__u32 pad;
};

/**
 * struct vmtrace_ev_exit - a task ended
 * @utime: its user time, ns, as getrusage(RUSAGE_THREAD) reports it. With the usual
 *	accounting the sum of @utime and @stime is exact, and its division is by ticks.
 * @stime: its system time, ns, likewise
 * @code: exit code, as wait4()
 * @pad: zero
 */
struct vmtrace_ev_exit {
	__u64 utime;
	__u64 stime;
	__s32 code;
	__u32 pad;
};

/**
 * struct vmtrace_ev_task - a task that exists at the snapshot, was given another
 * name, or was a kernel thread until now; event.mm is its address space
 * @tid: thread id
 * @tgid: process
 * @parent: process of its parent
 * @pad: zero
 * @comm: name
 * @start: when it was made, ns, CLOCK_MONOTONIC. Ids are used again; an id together
 *	with this time identifies a task.
 */
struct vmtrace_ev_task {
	__u32 tid;
	__u32 tgid;
	__u32 parent;
	__u32 pad;
	char comm[16];
	__u64 start;
};

/**
 * struct vmtrace_ev_switch - a context switch of vmtrace_event.cpu, one of the
 * threads of which is traced; event.tid is @next
 * @prev: thread that leaves, 0 if the CPU was idle
 * @next: thread that comes, 0 if the CPU is idle
 */
struct vmtrace_ev_switch {
	__u32 prev;
	__u32 next;
};

/**
 * struct vmtrace_ev_cgroup - a task is in another control group (version 2)
 * from here on, or was at the snapshot; its path follows
 * @tid: thread
 * @tgid: 0 if it is about this thread only, or its process, all of which moved
 * @name_len: bytes of the path, padded to 8; a longer one is cut short
 * @pad: zero
 */
struct vmtrace_ev_cgroup {
	__u32 tid;
	__u32 tgid;
	__u32 name_len;
	__u32 pad;
};

/**
 * struct vmtrace_ev_shm - System V shared memory
 * @start: first byte of the attachment, 0 for destroy
 * @end: first byte after
 * @dev: the segment's file
 * @ino: its inode
 * @shmid: the segment
 * @generation: inode's generation
 */
struct vmtrace_ev_shm {
	__u64 start;
	__u64 end;
	__u64 dev;
	__u64 ino;
	__s32 shmid;
	__u32 generation;
};

/**
 * struct vmtrace_ev_checkpoint - a description of all that is traced begins
 * @last_mm: the greatest number that an address space has got until now
 * @pad: zero
 *
 * Each address space that exists is described once, with VMTRACE_EVF_CHECKPOINT: by its
 * tasks, its set unless that is 0, its mappings, and afterwards its open files and control
 * groups. The first of these is VMTRACE_EV_TASK. They are logged
 * under the address space's lock, so they are true between the events before and after
 * them. A reader who begins here leaves out events of address spaces that it does not know
 * yet. It knows an address space from the first event of its description on; from its
 * VMTRACE_EV_MM_DUP on, if it knows the parent; or from the beginning, if its number is
 * greater than @last_mm and it is not the copy of one that the reader does not know.
 */
struct vmtrace_ev_checkpoint {
	__u32 last_mm;
	__u32 pad;
};

/**
 * struct vmtrace_ev_filter - which references are recorded from here on
 * @nr_tests: as in struct vmtrace_filter
 * @expr_len: bytes of the expression that follows, padded to 8
 *
 * Logged only with VMTRACE_FILTERED: before the first reference of the trace or of a
 * window, when the filter changes, and in each checkpoint.
 */
struct vmtrace_ev_filter {
	__u32 nr_tests;
	__u32 expr_len;
};

/**
 * struct vmtrace_ev_region - what looks at a region have found since the last report
 * @start: first byte
 * @end: first byte after
 * @looks: looks since the last report: at most vmtrace_sampling.aggregate /
 *	vmtrace_sampling.sample, rounded up, and one more. Less if the address space was locked
 *	at such a time, or sampling was late, or others changed what was looked at
 * @accesses: looks that found an access to their page after it was aimed at
 * @writes: of these, those that found a write; 0 with VMTRACE_BY_ACCESSED
 * @age: reports for which @accesses has stayed about the same
 * @cpus: with VMTRACE_BY_FAULT, the CPUs of these accesses: bit (CPU modulo 64), as far as a
 *	page was there, and was no huge page; else 0
 * @index: of the region in the report, from 0
 * @regions: how many the report has
 *
 * Only with VMTRACE_REGIONS. Reports of an address space are made one after the other. The
 * regions of a report are in the order of addresses and do not overlap. A report is cut short
 * if the trace ends meanwhile, or its address space; then its VMTRACE_EV_MM_END may stand before
 * the last region.
 */
struct vmtrace_ev_region {
	__u64 start;
	__u64 end;
	__u32 looks;
	__u32 accesses;
	__u32 writes;
	__u32 age;
	__u64 cpus;
	__u32 index;
	__u32 regions;
};

/* vmtrace_ev_file.kind */
#define VMTRACE_FILE_REGULAR	0
#define VMTRACE_FILE_DIRECTORY	1
#define VMTRACE_FILE_PIPE	2
#define VMTRACE_FILE_SOCKET	3
#define VMTRACE_FILE_CHAR	4
#define VMTRACE_FILE_BLOCK	5
#define VMTRACE_FILE_OTHER	6

/**
 * struct vmtrace_ev_file - open and close; the name follows
 * @dev: device, as in struct vmtrace_ev_map: of a stacked file system, that of
 *	the file below, whose pages are mapped
 * @ino: inode
 * @length: bytes at this moment
 * @generation: inode's generation
 * @kind: VMTRACE_FILE_*
 * @name_len: bytes of the name that follows, padded to 8
 * @pad: zero
 */
struct vmtrace_ev_file {
	__u64 dev;
	__u64 ino;
	__u64 length;
	__u32 generation;
	__u32 kind;
	__u32 name_len;
	__u32 pad;
};

/* vmtrace_ev_io.call; /proc/PID/io counts the first four as rchar and wchar. */
#define VMTRACE_CALL_RW		0	/* read(), pwritev2() and all between */
#define VMTRACE_CALL_KERNEL	1	/* the kernel itself: exec, core dump */
#define VMTRACE_CALL_SENDFILE	2
#define VMTRACE_CALL_COPY	3	/* copy_file_range(), FICLONE */
#define VMTRACE_CALL_SPLICE	4
#define VMTRACE_CALL_TEE	5
#define VMTRACE_CALL_VMSPLICE	6
#define VMTRACE_CALL_URING	7	/* io_uring's own reads and writes */
#define VMTRACE_CALL_AIO	8	/* io_submit() */

/* vmtrace_ev_io.flags */
#define VMTRACE_IO_DIRECT	(1 << 0) /* bypasses the page cache where possible */

/**
 * struct vmtrace_ev_io - read, write, truncate, punch, delete
 * @dev: device, as in struct vmtrace_ev_map
 * @ino: inode
 * @offset: first byte, 0 for what has no positions; TRUNCATE: the new length
 * @bytes: bytes really done; PUNCH: length of the hole; DELETE: the last length
 * @generation: inode's generation
 * @kind: VMTRACE_FILE_*
 * @call: READ, WRITE: VMTRACE_CALL_*; else 0
 * @flags: READ, WRITE: VMTRACE_IO_*; else 0
 */
struct vmtrace_ev_io {
	__u64 dev;
	__u64 ino;
	__u64 offset;
	__u64 bytes;
	__u32 generation;
	__u16 kind;
	__u8 call;
	__u8 flags;
};

/**
 * struct vmtrace_config - argument of VMTRACE_IOC_START
 * @size: sizeof(struct vmtrace_config)
 * @flags: VMTRACE_AGAIN, VMTRACE_VTIME, VMTRACE_PACK, with that VMTRACE_ZSTD, and
 *	VMTRACE_OFFSETS, VMTRACE_PAUSABLE, VMTRACE_FILTERED, VMTRACE_COUNTED and
 *	VMTRACE_UNWRITTEN, and VMTRACE_PIECE in a trace that is written, and VMTRACE_REGIONS; or
 *	VMTRACE_EARLY, with VMTRACE_PACK, VMTRACE_ZSTD and VMTRACE_PIECE at most: what
 *	vmtrace=early on the kernel command line has begun is written to @out_fd and goes on
 *	there. @scope is VMTRACE_SCOPE_ALL then, and all else but @size, @out_fd, @stall_ms,
 *	@flush_ms and @output 0, for the command line has set it.
 * @out_fd: a regular file or block device open for writing; with VMTRACE_UNWRITTEN, -1.
 *	The kernel keeps
 *	it open until the trace ends, whatever becomes of the caller.
 * @scope: VMTRACE_SCOPE_*
 * @pid: with VMTRACE_SCOPE_TREE, root of the tree in the caller's pid namespace; or 0
 * @evms_size: N: at least @first_segment for each of VMTRACE_EVMS_MIN_CPUS CPUs, or
 *	of all if there are fewer; at most VMTRACE_EVMS_MAX. If N is smaller than twice
 *	@first_segment for each possible CPU, CPUs take turns at having one.
 * @nr_buffers: sub-buffers of each stream, at least 4; 0 takes the default, which is
 *	smaller if all buffers would take more than an eighth of the memory
 * @buffer_size: bytes of a sub-buffer, a power of two from 4096 to 1 MiB; 0
 *	takes the default
 * @first_segment: admissions in the first segment of each CPU, at least
 *	VMTRACE_FIRST_MIN, which 0 stands for
 * @policy: VMTRACE_POLICY_*
 * @evms_max: what VMTRACE_IOC_RESIZE can make N; 0 takes four times @evms_size, or
 *	@evms_size itself if there are several sets
 * @classes: VMTRACE_CLASS_*
 * @vtime_skip: with VMTRACE_VTIME, ticks that a way into the kernel and back takes
 *	before its clock stops and after it runs again. They are taken off for each
 *	fault and interrupt.
 * @windows: this and the four below are as in struct vmtrace_header. All are 0 in a
 *	trace without windows. With VMTRACE_PAUSABLE, @warmup is 0, and so is @skip without
 *	VMTRACE_REGIONS. The trace begins between windows, or with one of regions.
 * @window_time: ns
 * @window_refs: references
 * @warmup: ns
 * @skip: ns
 * @stall_ms: the stall limit, from VMTRACE_STALL_MIN to VMTRACE_STALL_MAX; 0 takes the
 *	default. If a task waits for room in the log, and nothing was written for that
 *	long, the trace fails: no more is recorded, and all tasks go on.
 * @batch: K, the largest number of pages that one admission evicts: its victim, and
 *	pages of the same address space that come after the victim. One flush covers all
 *	of them. At most VMTRACE_BATCH_MAX, and N - K + 1 is at least the smallest N;
 *	1 with VMTRACE_POLICY_CLOCK. 0 takes the default: one page for each
 *	16 of N, at least 1 and at most VMTRACE_BATCH_DEFAULT, as far as that fits.
 * @sets: VMTRACE_SETS_*. A new address space or control group that there is no memory
 *	for a set for uses set 0, and is counted: see vmtrace_status.sets_shared
 * @mode: VMTRACE_MODE_*
 * @flush_ms: a record of a stay that has ended, or of an event, is written after so long
 *	at the latest, even if its sub-buffer is not full, unless kvmtraced is behind.
 *	From VMTRACE_FLUSH_MIN to VMTRACE_FLUSH_MAX; 0 takes the default, and
 *	VMTRACE_FLUSH_NEVER waits for full sub-buffers. The disk is then asked to take what
 *	was written.
 * @output: what to call the output in the status; NUL-terminated
 * @filter: with VMTRACE_FILTERED, address of a struct vmtrace_filter, or 0 to record all
 *	references for now
 * @cgroup_fd: with VMTRACE_SCOPE_CGROUP, the directory of the group; or 0
 * @comm: with VMTRACE_SCOPE_COMM, a pattern: * stands for any characters, ? for one, and
 *	[...] for one of some; or empty. NUL-terminated
 * @interval: as in struct vmtrace_header; 0, or from VMTRACE_INTERVAL_MIN to
 *	VMTRACE_INTERVAL_MAX
 * @sampling: with VMTRACE_REGIONS: times from VMTRACE_SAMPLE_MIN to VMTRACE_INTERVAL_MAX, of
 *	which none is less than the one before, and numbers of regions from
 *	VMTRACE_REGIONS_MIN to VMTRACE_REGIONS_MAX. Else zero
 */
struct vmtrace_config {
	__u32 size;
	__u32 flags;
	__s32 out_fd;
	__u32 scope;
	__s32 pid;
	__u32 evms_size;
	__u32 nr_buffers;
	__u32 buffer_size;
	__u32 first_segment;
	__u32 policy;
	__u32 evms_max;
	__u32 classes;
	__u32 vtime_skip;
	__u32 windows;
	__u64 window_time;
	__u64 window_refs;
	__u64 warmup;
	__u64 skip;
	__u32 stall_ms;
	__u32 batch;
	__u32 sets;
	__u16 mode;
	__u16 flush_ms;
	char output[256];
	__u64 filter;
	__s32 cgroup_fd;
	char comm[60];
	__u64 interval;
	struct vmtrace_sampling sampling;
};

/*
 * Sizes of the first versions. Later ones are longer, for fields are added at the end, and 0
 * stands for what there was without them. The request of an ioctl has the size that the
 * caller knows, and so has @size. A kernel that knows less gives E2BIG unless the rest is
 * 0. Of a status, the caller gets as much as it knows, or as little as it asks for.
 */
#define VMTRACE_STATUS_SIZE_VER0	600
#define VMTRACE_CONFIG_SIZE_VER0	360
#define VMTRACE_ROTATE_SIZE_VER0	264
#define VMTRACE_FILTER_SIZE_VER0	32
#define VMTRACE_COUNTS_SIZE_VER0	40
#define VMTRACE_RINGS_SIZE_VER0		48

/* vmtrace_filter_test.field: what of a reference is compared */
#define VMTRACE_FIELD_PID	0	/* number: process, in the initial pid namespace */
#define VMTRACE_FIELD_TID	1	/* number: thread, in the initial pid namespace */
#define VMTRACE_FIELD_COMM	2	/* text: the thread's name */
/* number: address of the access with VMTRACE_OFFSETS, of the page without */
#define VMTRACE_FIELD_ADDR	3
/* number: address of the page by the size of a small page; of a huge one, its first */
#define VMTRACE_FIELD_PAGE	4
#define VMTRACE_FIELD_KIND	5	/* number: VMTRACE_REF_READ, _WRITE or _EXEC */
#define VMTRACE_FIELD_MODE	6	/* number: 0 user mode, 1 the kernel */
#define VMTRACE_FIELD_CPU	7	/* number */
#define VMTRACE_FIELD_SET	8	/* number: the EVMS */
/* text: as in VMTRACE_EV_MAP; without a name [heap], [stack], [anon] or [special] */
#define VMTRACE_FIELD_MAPPING	9
#define VMTRACE_FIELD_MAPPING_KIND 10	/* number: VMTRACE_MAP_* */

/* vmtrace_filter_test.op */
#define VMTRACE_OP_RANGE	0	/* from @low to @high, both included */
#define VMTRACE_OP_TEXT		1	/* equal to a text */
#define VMTRACE_OP_GLOB		2	/* fits a pattern */

/* vmtrace_filter_test.yes and .no */
#define VMTRACE_FILTER_KEEP	0xffff	/* the reference is recorded */
#define VMTRACE_FILTER_LEAVE	0xfffe	/* it is left out */

#define VMTRACE_FILTER_TESTS	256	/* tests of a filter, at most */
#define VMTRACE_FILTER_EXPR	400	/* bytes of an expression, at most */
#define VMTRACE_FILTER_TEXTS	4096	/* bytes of @texts, at most */

/**
 * struct vmtrace_filter_test - a comparison, and where to go on
 * @field: VMTRACE_FIELD_*
 * @op: VMTRACE_OP_*: _RANGE for numbers, the others for texts
 * @yes: if it holds: VMTRACE_FILTER_*, or the number of a test behind this one
 * @no: if it does not
 * @low: of a range; or the first byte in @texts of a text or pattern
 * @high: of a range; or bytes of the text or pattern, of which none is zero. A zero byte
 *	follows them. Texts and patterns of all tests together are no longer than
 *	vmtrace_filter.texts_len, so none is that of many tests
 *
 * Patterns are those of lib/glob.c.
 */
struct vmtrace_filter_test {
	__u16 field;
	__u16 op;
	__u16 yes;
	__u16 no;
	__u64 low;
	__u64 high;
};

/**
 * struct vmtrace_filter - which references are recorded: argument of VMTRACE_IOC_FILTER
 * @size: sizeof(struct vmtrace_filter)
 * @nr_tests: the first one is where to begin; 0: all references are recorded
 * @tests: address of as many struct vmtrace_filter_test
 * @texts: address of the bytes that tests need, behind those of the expression
 * @texts_len: how many there are
 * @expr_len: bytes of the expression, as the user wrote it, of which none is zero: see
 *	struct vmtrace_ev_filter. 0 if and only if @nr_tests is
 *
 * Each reference is judged when it is made, by what its task and its mapping are at that
 * moment. The EVMS does not depend on that: a page that is accessed becomes a member, and
 * the record of its stay is left out. So a trace with a filter has those records that
 * one without it has and that fit the filter, with sequence numbers that are missing for
 * the others. Records that continue a stay are judged by the reference that began it.
 * Events are not left out.
 */
struct vmtrace_filter {
	__u32 size;
	__u32 nr_tests;
	__u64 tests;
	__u64 texts;
	__u32 texts_len;
	__u32 expr_len;
};

/* vmtrace_config.flush_ms */
#define VMTRACE_FLUSH_MIN	100
#define VMTRACE_FLUSH_MAX	60000
#define VMTRACE_FLUSH_DEFAULT	800
#define VMTRACE_FLUSH_NEVER	0xffff

/* vmtrace_config.stall_ms */
#define VMTRACE_STALL_MIN	1000
#define VMTRACE_STALL_MAX	(60 * 60 * 1000)
#define VMTRACE_STALL_DEFAULT	10000

/* vmtrace_config.interval, ns */
#define VMTRACE_INTERVAL_MIN	1000000ULL
#define VMTRACE_INTERVAL_MAX	3600000000000ULL

/* vmtrace_config.sampling */
#define VMTRACE_SAMPLE_MIN	100000ULL	/* ns */
#define VMTRACE_CHANGE_MAX	1000
#define VMTRACE_REGIONS_MIN	3
#define VMTRACE_REGIONS_MAX	65536

/* vmtrace_status.state */
#define VMTRACE_STATE_OFF	0	/* never on since boot, or ended well */
#define VMTRACE_STATE_ON	1
#define VMTRACE_STATE_FAILED	2	/* ended by itself: see error */
#define VMTRACE_STATE_EARLY	3	/* since boot, and has no output yet */
#define VMTRACE_STATE_ENDING	4	/* STOP was called: the rest is being written */

/**
 * struct vmtrace_status - what the kernel counted; of the trace that is on, or
 * else of the last one
 * @size: sizeof(struct vmtrace_status)
 * @state: VMTRACE_STATE_*
 * @error: errno of what failed, 0 if nothing did; ETIMEDOUT if the output took
 *	nothing for as long as the stall limit
 * @scope: as configured
 * @pid: as configured; 0 for a caller who may not trace
 * @evms_size: N at present
 * @evms_min: the smallest N that this machine accepts
 * @nr_cpus: possible CPUs
 * @uuid: of the trace
 * @start_time: ns, CLOCK_MONOTONIC
 * @stop_time: ns; of the call while tracing is on
 * @last_seq: sequence numbers given out
 * @admissions: pages enabled. Conservation: @admissions + @renewed + @chances ==
 *	@refs + @left_out + @lost_full + @lost_io (references' part) once tracing has
 *	stopped.
 * @refs: reference records written to the output
 * @events: event records written to the output
 * @aborted: sequence numbers of admissions that were given up because the
 *	mapping had changed meanwhile
 * @members: pages enabled now
 * @members_max: most ever enabled at once: never above @evms_peak for each of
 *	@sets_max + 1 sets
 * @funny: accessible pages found outside the EVMS: must be 0
 * @stuck: victims that could not be disabled: must be 0
 * @audits: address spaces audited: at the end of the trace, when asked to, and at
 *	their own end on kernels that are to do that
 * @dangling: members that an audit found without an accessible PTE, or with that
 *	of another page frame or address space: must be 0
 * @miscounted: figures of the set that an audit found to contradict each other:
 *	must be 0
 * @uncovered: accesses set up that this tracer cannot see (PMD leaves except those
 *	of hugetlb, PAT)
 * @lost_full: records lost for want of room
 * @lost_atomic: events lost where the kernel could not wait
 * @lost_io: records lost because the output failed; while it still holds up what is
 *	left, at least these
 * @waits: times that a task waited for room
 * @packets: packets written before that of VMTRACE_STREAM_END
 * @bytes: bytes of the header and of these packets, before their content was packed
 * @mms: address spaces traced since the start
 * @renewed: records ended by VMTRACE_WHY_RENEWED
 * @chances: records ended by VMTRACE_WHY_CHANCE
 * @flags: as configured
 * @first_segment: as configured, or the default
 * @policy: as configured
 * @batch: the present K: as configured, or the default, or less after
 *	VMTRACE_IOC_RESIZE has made N small
 * @evms_max: the greatest N that VMTRACE_IOC_RESIZE takes
 * @evms_peak: the greatest N since the start
 * @classes: VMTRACE_CLASS_*, as configured
 * @windows: as configured
 * @windows_begun: windows until now
 * @windows_ended: those that have ended
 * @unaudited: address spaces that an audit could not look at, because a task kept
 *	them locked
 * @output: as configured; empty for a caller who may not trace
 * @sets: VMTRACE_SETS_*, as configured. This and what follows is not in traces of
 *	kernels without it, whose @size is smaller.
 * @mode: VMTRACE_MODE_*, as configured
 * @sets_made: sets made since the start, without set 0
 * @sets_max: the most of these that there were at once
 * @sets_shared: address spaces that use set 0 because there was no memory for a set of
 *	their own. What they do is traced in full, but the records of one depend on
 *	what the others do.
 * @stored: bytes written before that packet: less than @bytes if content was packed
 * @piece: number of the piece that is being written; 0 if the trace is not in pieces
 * @pad: zero
 * @piece_bytes: bytes of its own part until now
 * @left_out: with VMTRACE_FILTERED, records of references that were left out, of those
 *	that begin a stay and of those that continue one
 * @scope_name: as in struct vmtrace_header; empty for a caller who may not trace
 * @interval: as configured
 * @ran: for how long traced tasks have had a CPU since the first window began, or since the
 *	start, in user mode and in the kernel, faults of the tracer included, and also between
 *	windows; ns
 */
struct vmtrace_status {
	__u32 size;
	__u32 state;
	__s32 error;
	__u32 scope;
	__s32 pid;
	__u32 evms_size;
	__u32 evms_min;
	__u32 nr_cpus;
	__u8 uuid[16];
	__u64 start_time;
	__u64 stop_time;
	__u64 last_seq;
	__u64 admissions;
	__u64 refs;
	__u64 events;
	__u64 aborted;
	__u64 members;
	__u64 members_max;
	__u64 funny;
	__u64 stuck;
	__u64 audits;
	__u64 dangling;
	__u64 miscounted;
	__u64 uncovered;
	__u64 lost_full;
	__u64 lost_atomic;
	__u64 lost_io;
	__u64 waits;
	__u64 packets;
	__u64 bytes;
	__u64 mms;
	__u64 renewed;
	__u64 chances;
	__u32 flags;
	__u32 first_segment;
	__u16 policy;
	__u16 batch;
	__u32 evms_max;
	__u32 evms_peak;
	__u32 classes;
	__u32 windows;
	__u32 windows_begun;
	__u32 windows_ended;
	__u32 unaudited;
	char output[256];
	__u32 sets;
	__u32 mode;
	__u64 sets_made;
	__u64 sets_max;
	__u64 sets_shared;
	__u64 stored;
	__u32 piece;
	__u32 pad;
	__u64 piece_bytes;
	__u64 left_out;
	char scope_name[256];
	__u64 interval;
	__u64 ran;
};

/**
 * struct vmtrace_rotate - argument of VMTRACE_IOC_ROTATE
 * @size: sizeof(struct vmtrace_rotate)
 * @out_fd: the file of the next piece, as in struct vmtrace_config. Pieces are regular
 *	files, which end where the piece does
 * @output: what to call it in the status; NUL-terminated
 */
struct vmtrace_rotate {
	__u32 size;
	__s32 out_fd;
	char output[256];
};

/*
 * All but STATUS, and WINDOW from a task of a tree or group that is traced, need CAP_SYS_ADMIN, or
 * CAP_PERFMON if the sysctl vm.vmtrace_paranoid is 0, in the initial user namespace. All give
 * ENODEV in a paravirtualized guest of Xen.
 */
#define VMTRACE_IOC_MAGIC	0xb7
/*
 * EBUSY if on, or if what an earlier trace has left cannot be written yet;
 * ETIMEDOUT if the output took nothing for as long as the stall limit; EINTR if
 * the caller was killed; ENODATA if VMTRACE_EARLY and nothing waits to be taken;
 * EOPNOTSUPP if there is no clock for VMTRACE_VTIME, or there are no control groups;
 * EBADF if there is no control group of version 2; EINVAL, ESRCH, EBADF, EROFS,
 * EPERM, ENOMEM
 */
#define VMTRACE_IOC_START	_IOW(VMTRACE_IOC_MAGIC, 1, struct vmtrace_config)
/*
 * Flush all, end the stream; ENODATA if off; EIO if the output had failed. All of
 * that is done even if the caller is killed: EINTR. EINPROGRESS if nothing could be
 * written for a second: tasks go on, and the trace ends when the output takes the
 * rest. Another call waits for the same end. The records of a trace from boot
 * without an output are dropped and counted by lost_io.
 */
#define VMTRACE_IOC_STOP	_IOR(VMTRACE_IOC_MAGIC, 2, struct vmtrace_status)
#define VMTRACE_IOC_STATUS	_IOR(VMTRACE_IOC_MAGIC, 3, struct vmtrace_status)
/* A new N; ENODATA if off, EINVAL if too small, ENOSPC if above evms_max */
#define VMTRACE_IOC_RESIZE	_IOW(VMTRACE_IOC_MAGIC, 4, __u32)
/*
 * Begins a window of a trace with VMTRACE_PAUSABLE (1), or ends it (0), and waits
 * until that is done. Records of a window that has ended may still have to be written. With
 * VMTRACE_REGIONS, the window is one of references.
 * It does nothing if it is so already. ENODATA if off, if the trace has ended by
 * itself, or if there were as many windows as there are to be; EOPNOTSUPP if windows
 * begin by a plan, or there are none; EINTR if the caller was killed, and EINPROGRESS if
 * nothing could be written for a second: it will be done all the same. EINVAL for
 * another argument. A task of a tree or group that is traced needs no right for this; others get
 * EPERM. To write "resume" or "pause" to the device does
 * the same.
 */
#define VMTRACE_IOC_WINDOW	_IOW(VMTRACE_IOC_MAGIC, 5, __u32)
/*
 * Begins the next piece of a trace with VMTRACE_PIECE in another file, and waits until the
 * former piece is complete. Nothing is lost, and tracing goes on meanwhile. ENODATA if off;
 * EOPNOTSUPP if the trace is not in pieces; EBUSY if another call has not ended; EINTR if
 * the caller was killed, and EINPROGRESS if nothing could be written for a second, or if a
 * window is open, at whose end the piece begins: it will be done all the same, unless STOP
 * comes first. Then the new file is of no use. Any other error: so it is, and the trace goes on in
 * the former one unless its status says that it has failed. EAGAIN if a program was being
 * started, or an address space was locked, for too long; EINVAL if the file is not new and
 * empty; EBADF, EPERM, EIO, and what writing gives. The kernel does not sync a piece when it
 * is complete.
 */
#define VMTRACE_IOC_ROTATE	_IOW(VMTRACE_IOC_MAGIC, 6, struct vmtrace_rotate)
/*
 * Another filter for a trace with VMTRACE_FILTERED, from a moment on that is in the trace: see
 * VMTRACE_EV_FILTER. ENODATA if off, or if the output has failed; EOPNOTSUPP without
 * VMTRACE_FILTERED; EINTR if the caller was killed; ETIMEDOUT if there was no room for the
 * event for seconds: nothing has changed; EINVAL if a test is none; E2BIG if there are too
 * many tests or bytes; EFAULT, EPERM, ENOMEM
 */
#define VMTRACE_IOC_FILTER	_IOW(VMTRACE_IOC_MAGIC, 7, struct vmtrace_filter)

/**
 * struct vmtrace_count - references of a process to what it has mapped
 * @reads: references by loads in user mode
 * @writes: by stores in user mode
 * @fetches: by fetches of instructions
 * @kernel: by the kernel, of any kind
 * @dev: of a mapped file, as in struct vmtrace_ev_map; else 0
 * @ino: of a mapped file; else 0
 * @mm: number of the address space
 * @pid: process that made the last of these references
 * @kind: VMTRACE_MAP_*
 * @pad: zero
 * @comm: name of the thread that made the last of these references, NUL-terminated
 * @name: of the file, as in VMTRACE_EV_MAP; of anonymous memory [heap], [stack] or [anon], of
 *	which each is a mapping of its own here; as much as there is room for,
 *	NUL-terminated
 */
struct vmtrace_count {
	__u64 reads;
	__u64 writes;
	__u64 fetches;
	__u64 kernel;
	__u64 dev;
	__u64 ino;
	__u32 mm;
	__u32 pid;
	__u32 kind;
	__u32 pad;
	char comm[16];
	char name[48];
};

/**
 * struct vmtrace_counts - argument of VMTRACE_IOC_COUNTS
 * @size: sizeof(struct vmtrace_counts)
 * @nr: how many struct vmtrace_count there is room for; the kernel sets how many there are,
 *	which may be more: then the others are missing
 * @counts: address of these
 * @time: set by the kernel: now, ns, CLOCK_MONOTONIC
 * @references: set by the kernel: all references since the start of the trace
 * @elsewhere: set by the kernel: those of them that are in no struct vmtrace_count. The
 *	kernel keeps a limited number of these. It gives up those that were not counted
 *	in for the longest time.
 *
 * Each CPU counts by itself, and address spaces have other numbers in each window. So several
 * struct vmtrace_count may be of one process and one mapping, and are to be added up. The
 * counts are those since the start. They go on while they are read, so their sum with
 * @elsewhere may be a little smaller or greater than @references unless the trace is between
 * windows. Files are told apart by device and inode. If the number of an inode is used again,
 * the count goes on.
 */
struct vmtrace_counts {
	__u32 size;
	__u32 nr;
	__u64 counts;
	__u64 time;
	__u64 references;
	__u64 elsewhere;
};

/*
 * Counts of a trace with VMTRACE_COUNTED. ENODATA if off, if the trace ends meanwhile, or if
 * the output has failed; EOPNOTSUPP without VMTRACE_COUNTED; EINVAL, E2BIG, EFAULT, EPERM,
 * ENOMEM
 */
#define VMTRACE_IOC_COUNTS	_IOWR(VMTRACE_IOC_MAGIC, 8, struct vmtrace_counts)

/**
 * struct vmtrace_ring - a ring of sub-buffers, and what has become of records for it
 * @kind: VMTRACE_STREAM_REF or VMTRACE_STREAM_EVENT
 * @cpu: whose ring it is; a CPU that was offline at the start uses another one's
 * @buffers: sub-buffers that the ring was made with. For a time, it may have more
 * @buffer_size: bytes of each
 * @free: sub-buffers with nothing in them
 * @full: sub-buffers that wait for kvmtraced. The others are being filled or written
 * @waiting: records in the ring, without those that kvmtraced has taken
 * @lost_full: records lost for want of room
 * @lost_atomic: of events: those lost where the kernel could not wait for room
 * @admissions: of references: as in struct vmtrace_status, on the CPUs that use the ring;
 *	this and those that follow are 0 in a ring of events
 * @renewed: likewise
 * @chances: likewise
 * @left_out: likewise
 *
 * Of references, the records that the ring has ever taken are @admissions + @renewed + @chances -
 * @left_out - @lost_full, while no admission is on the way.
 */
struct vmtrace_ring {
	__u32 kind;
	__u32 cpu;
	__u32 buffers;
	__u32 buffer_size;
	__u32 free;
	__u32 full;
	__u64 waiting;
	__u64 lost_full;
	__u64 lost_atomic;
	__u64 admissions;
	__u64 renewed;
	__u64 chances;
	__u64 left_out;
};

/**
 * struct vmtrace_rings - argument of VMTRACE_IOC_RINGS
 * @size: sizeof(struct vmtrace_rings), as in struct vmtrace_config
 * @nr: struct vmtrace_ring at @rings; set by the kernel: how many there are. If there are
 *	more than there was room for, the first are there.
 * @rings: address of these
 * @time: set by the kernel: now, ns, CLOCK_MONOTONIC
 * @seq: set by the kernel: the greatest number of a record
 * @uuid: set by the kernel: of which trace they are
 */
struct vmtrace_rings {
	__u32 size;
	__u32 nr;
	__u64 rings;
	__u64 time;
	__u64 seq;
	__u8 uuid[16];
};

/*
 * The rings of the trace that is on, also while it ends or after its output has failed. ENODATA
 * if off, or if the trace ends meanwhile; EINVAL, E2BIG, EFAULT, EPERM
 */
#define VMTRACE_IOC_RINGS	_IOWR(VMTRACE_IOC_MAGIC, 9, struct vmtrace_rings)

#endif /* _UAPI_LINUX_VMTRACE_H */
