// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
// Made of uapi/linux/vmtrace.h by bindgen. After a change of the header, this makes the file anew:
// KVMTRACE_ACCEPT=1 cargo test -p uapi-bindings

pub const VMTRACE_VERSION: u32 = 1;
pub const VMTRACE_MAGIC: u64 = 7305790164193597035;
pub const VMTRACE_PACKET_MAGIC: u64 = 8388908001055231318;
pub const VMTRACE_HEADER_SIZE: u32 = 4096;
pub const VMTRACE_NAME_MAX: u32 = 255;
pub const VMTRACE_FIRST_MIN: u32 = 16;
pub const VMTRACE_EVMS_MIN_CPUS: u32 = 2;
pub const VMTRACE_EVMS_MAX: u32 = 4194304;
pub const VMTRACE_BATCH_MAX: u32 = 64;
pub const VMTRACE_BATCH_DEFAULT: u32 = 13;
pub const VMTRACE_AGAIN: u32 = 1;
pub const VMTRACE_VTIME: u32 = 2;
pub const VMTRACE_EARLY: u32 = 4;
pub const VMTRACE_PACK: u32 = 8;
pub const VMTRACE_OFFSETS: u32 = 16;
pub const VMTRACE_ZSTD: u32 = 32;
pub const VMTRACE_PAUSABLE: u32 = 64;
pub const VMTRACE_FILTERED: u32 = 128;
pub const VMTRACE_COUNTED: u32 = 256;
pub const VMTRACE_UNWRITTEN: u32 = 512;
pub const VMTRACE_REGIONS: u32 = 1024;
pub const VMTRACE_PIECE: u32 = 65536;
pub const VMTRACE_CLASS_FILE: u32 = 1;
pub const VMTRACE_CLASS_IO: u32 = 2;
pub const VMTRACE_CLASS_SHM: u32 = 4;
pub const VMTRACE_CLASS_GUP: u32 = 8;
pub const VMTRACE_CLASS_SWAP: u32 = 16;
pub const VMTRACE_CLASS_FRAME: u32 = 32;
pub const VMTRACE_CLASS_SWITCH: u32 = 64;
pub const VMTRACE_CLASSES: u32 = 127;
pub const VMTRACE_CLASSES_USUAL: u32 = 15;
pub const VMTRACE_MODE_BLOCK: u32 = 0;
pub const VMTRACE_MODE_DISCARD: u32 = 1;
pub const VMTRACE_POLICY_FIFO: u32 = 0;
pub const VMTRACE_POLICY_CLOCK: u32 = 1;
pub const VMTRACE_SCOPE_ALL: u32 = 1;
pub const VMTRACE_SCOPE_TREE: u32 = 2;
pub const VMTRACE_SCOPE_CGROUP: u32 = 3;
pub const VMTRACE_SCOPE_COMM: u32 = 4;
pub const VMTRACE_SETS_ONE: u32 = 0;
pub const VMTRACE_SETS_PROCESS: u32 = 1;
pub const VMTRACE_SETS_CGROUP: u32 = 2;
pub const VMTRACE_OFF_PMD_THP: u32 = 1;
pub const VMTRACE_OFF_PMD_MOVE: u32 = 2;
pub const VMTRACE_OFF_NUMA: u32 = 4;
pub const VMTRACE_CLOCK_MONOTONIC: u32 = 1;
pub const VMTRACE_VTIME_TSC: u32 = 1;
pub const VMTRACE_VTIME_NONE: i32 = -1;
pub const VMTRACE_OFFSET_NONE: i64 = -9223372036854775808;
pub const VMTRACE_BY_ACCESSED: u32 = 0;
pub const VMTRACE_BY_FAULT: u32 = 1;
pub const VMTRACE_CODEC_PACK: u32 = 1;
pub const VMTRACE_CODEC_ZSTD: u32 = 2;
pub const VMTRACE_CODEC_PACK2: u32 = 4;
pub const VMTRACE_STREAM_REF: u32 = 1;
pub const VMTRACE_STREAM_EVENT: u32 = 2;
pub const VMTRACE_STREAM_END: u32 = 3;
pub const VMTRACE_STREAM_WINDOW: u32 = 4;
pub const VMTRACE_STREAM_PIECE: u32 = 16;
pub const VMTRACE_STREAM_STATE: u32 = 17;
pub const VMTRACE_STREAM_OWN: u32 = 18;
pub const VMTRACE_STREAM_PIECE_END: u32 = 19;
pub const VMTRACE_WINDOW_TIME: u32 = 0;
pub const VMTRACE_WINDOW_REFS: u32 = 1;
pub const VMTRACE_WINDOW_STOP: u32 = 2;
pub const VMTRACE_WINDOW_PAUSE: u32 = 3;
pub const VMTRACE_WINDOW_CHANGE: u32 = 4;
pub const VMTRACE_WINDOW_RESUME: u32 = 5;
pub const VMTRACE_WINDOW_PIECE: u32 = 6;
pub const VMTRACE_WINDOW_OVER: u32 = 7;
pub const VMTRACE_WINDOW_NEXT: u32 = 8;
pub const VMTRACE_PIECE_MIDDLE: u32 = 1;
pub const VMTRACE_PIECE_LAST: u32 = 2;
pub const VMTRACE_PIECE_CHECKPOINT: u32 = 4;
pub const VMTRACE_REF_KIND: u32 = 3;
pub const VMTRACE_REF_READ: u32 = 0;
pub const VMTRACE_REF_WRITE: u32 = 1;
pub const VMTRACE_REF_EXEC: u32 = 2;
pub const VMTRACE_REF_SEEN: u32 = 3;
pub const VMTRACE_REF_KERNEL: u32 = 4;
pub const VMTRACE_REF_DIRTIED: u32 = 8;
pub const VMTRACE_REF_AGAIN: u32 = 16;
pub const VMTRACE_REF_WHY: u32 = 480;
pub const VMTRACE_REF_WHY_SHIFT: u32 = 5;
pub const VMTRACE_REF_CONT: u32 = 512;
pub const VMTRACE_REF_LEFT: u32 = 1024;
pub const VMTRACE_REF_FLAGS: u32 = 4095;
pub const VMTRACE_WHY_EVICTED: u32 = 0;
pub const VMTRACE_WHY_UNMAPPED: u32 = 1;
pub const VMTRACE_WHY_COW: u32 = 2;
pub const VMTRACE_WHY_PROTECTED: u32 = 3;
pub const VMTRACE_WHY_RECLAIMED: u32 = 4;
pub const VMTRACE_WHY_MOVED: u32 = 5;
pub const VMTRACE_WHY_EXIT: u32 = 6;
pub const VMTRACE_WHY_DRAINED: u32 = 7;
pub const VMTRACE_WHY_MIGRATED: u32 = 8;
pub const VMTRACE_WHY_ADVISED: u32 = 9;
pub const VMTRACE_WHY_TRUNCATED: u32 = 10;
pub const VMTRACE_WHY_OTHER: u32 = 11;
pub const VMTRACE_WHY_RENEWED: u32 = 12;
pub const VMTRACE_WHY_CHANCE: u32 = 13;
pub const VMTRACE_WHY_PIECE: u32 = 14;
pub const VMTRACE_WHY_INTERVAL: u32 = 15;
pub const VMTRACE_STAY_SHIFT: u32 = 6;
pub const VMTRACE_TID_BITS: u32 = 22;
pub const VMTRACE_EV_MAP: u32 = 1;
pub const VMTRACE_EV_UNMAP: u32 = 2;
pub const VMTRACE_EV_MOVE: u32 = 3;
pub const VMTRACE_EV_PROTECT: u32 = 4;
pub const VMTRACE_EV_ADVISE: u32 = 5;
pub const VMTRACE_EV_COW: u32 = 6;
pub const VMTRACE_EV_MM_DUP: u32 = 7;
pub const VMTRACE_EV_MM_END: u32 = 8;
pub const VMTRACE_EV_FORK: u32 = 16;
pub const VMTRACE_EV_EXEC: u32 = 17;
pub const VMTRACE_EV_EXIT: u32 = 18;
pub const VMTRACE_EV_TASK: u32 = 19;
pub const VMTRACE_EV_SWITCH: u32 = 20;
pub const VMTRACE_EV_CGROUP: u32 = 21;
pub const VMTRACE_EV_SHMAT: u32 = 32;
pub const VMTRACE_EV_SHMDT: u32 = 33;
pub const VMTRACE_EV_SHM_DESTROY: u32 = 34;
pub const VMTRACE_EV_OPEN: u32 = 48;
pub const VMTRACE_EV_CLOSE: u32 = 49;
pub const VMTRACE_EV_READ: u32 = 50;
pub const VMTRACE_EV_WRITE: u32 = 51;
pub const VMTRACE_EV_TRUNCATE: u32 = 52;
pub const VMTRACE_EV_PUNCH: u32 = 53;
pub const VMTRACE_EV_DELETE: u32 = 54;
pub const VMTRACE_EV_SWAP_IN: u32 = 64;
pub const VMTRACE_EV_SWAP_OUT: u32 = 65;
pub const VMTRACE_EV_KSM: u32 = 66;
pub const VMTRACE_EV_MIGRATE: u32 = 67;
pub const VMTRACE_EV_GUP: u32 = 80;
pub const VMTRACE_EV_RESIZE: u32 = 83;
pub const VMTRACE_EV_SET: u32 = 84;
pub const VMTRACE_EV_FILTER: u32 = 85;
pub const VMTRACE_EV_REGION: u32 = 86;
pub const VMTRACE_EV_SNAP_BEGIN: u32 = 96;
pub const VMTRACE_EV_SNAP_END: u32 = 97;
pub const VMTRACE_EV_REFS_BEGIN: u32 = 98;
pub const VMTRACE_EV_CHECKPOINT: u32 = 99;
pub const VMTRACE_EV_CHECKPOINT_END: u32 = 100;
pub const VMTRACE_EVF_SNAPSHOT: u32 = 1;
pub const VMTRACE_EVF_STATE: u32 = 2;
pub const VMTRACE_EVF_CHECKPOINT: u32 = 4;
pub const VMTRACE_PROT_READ: u32 = 1;
pub const VMTRACE_PROT_WRITE: u32 = 2;
pub const VMTRACE_PROT_EXEC: u32 = 4;
pub const VMTRACE_MAP_SHARED: u32 = 1;
pub const VMTRACE_MAP_GROWSDOWN: u32 = 2;
pub const VMTRACE_MAP_LOCKED: u32 = 4;
pub const VMTRACE_MAP_PFN: u32 = 8;
pub const VMTRACE_MAP_UNCOVERED: u32 = 16;
pub const VMTRACE_MAP_MERGEABLE: u32 = 32;
pub const VMTRACE_MAP_PAGE_SHIFT: u32 = 8;
pub const VMTRACE_MAP_PAGE: u32 = 65280;
pub const VMTRACE_MAP_ANON: u32 = 0;
pub const VMTRACE_MAP_FILE: u32 = 1;
pub const VMTRACE_MAP_SHMEM: u32 = 2;
pub const VMTRACE_MAP_DEVICE: u32 = 3;
pub const VMTRACE_MAP_SPECIAL: u32 = 4;
pub const VMTRACE_MAP_HUGETLB: u32 = 5;
pub const VMTRACE_BY_MMAP: u32 = 0;
pub const VMTRACE_BY_BRK: u32 = 1;
pub const VMTRACE_BY_STACK: u32 = 2;
pub const VMTRACE_BY_MREMAP: u32 = 3;
pub const VMTRACE_BY_SNAPSHOT: u32 = 4;
pub const VMTRACE_BY_SPECIAL: u32 = 5;
pub const VMTRACE_MOVE_DONTUNMAP: u32 = 1;
pub const VMTRACE_GUP_WRITE: u32 = 1;
pub const VMTRACE_GUP_LONGTERM: u32 = 2;
pub const VMTRACE_SWAP_AREA_SHIFT: u32 = 56;
pub const VMTRACE_NO_FRAME: i32 = -1;
pub const VMTRACE_FILE_REGULAR: u32 = 0;
pub const VMTRACE_FILE_DIRECTORY: u32 = 1;
pub const VMTRACE_FILE_PIPE: u32 = 2;
pub const VMTRACE_FILE_SOCKET: u32 = 3;
pub const VMTRACE_FILE_CHAR: u32 = 4;
pub const VMTRACE_FILE_BLOCK: u32 = 5;
pub const VMTRACE_FILE_OTHER: u32 = 6;
pub const VMTRACE_CALL_RW: u32 = 0;
pub const VMTRACE_CALL_KERNEL: u32 = 1;
pub const VMTRACE_CALL_SENDFILE: u32 = 2;
pub const VMTRACE_CALL_COPY: u32 = 3;
pub const VMTRACE_CALL_SPLICE: u32 = 4;
pub const VMTRACE_CALL_TEE: u32 = 5;
pub const VMTRACE_CALL_VMSPLICE: u32 = 6;
pub const VMTRACE_CALL_URING: u32 = 7;
pub const VMTRACE_CALL_AIO: u32 = 8;
pub const VMTRACE_IO_DIRECT: u32 = 1;
pub const VMTRACE_STATUS_SIZE_VER0: u32 = 600;
pub const VMTRACE_CONFIG_SIZE_VER0: u32 = 360;
pub const VMTRACE_ROTATE_SIZE_VER0: u32 = 264;
pub const VMTRACE_FILTER_SIZE_VER0: u32 = 32;
pub const VMTRACE_COUNTS_SIZE_VER0: u32 = 40;
pub const VMTRACE_RINGS_SIZE_VER0: u32 = 48;
pub const VMTRACE_FIELD_PID: u32 = 0;
pub const VMTRACE_FIELD_TID: u32 = 1;
pub const VMTRACE_FIELD_COMM: u32 = 2;
pub const VMTRACE_FIELD_ADDR: u32 = 3;
pub const VMTRACE_FIELD_PAGE: u32 = 4;
pub const VMTRACE_FIELD_KIND: u32 = 5;
pub const VMTRACE_FIELD_MODE: u32 = 6;
pub const VMTRACE_FIELD_CPU: u32 = 7;
pub const VMTRACE_FIELD_SET: u32 = 8;
pub const VMTRACE_FIELD_MAPPING: u32 = 9;
pub const VMTRACE_FIELD_MAPPING_KIND: u32 = 10;
pub const VMTRACE_OP_RANGE: u32 = 0;
pub const VMTRACE_OP_TEXT: u32 = 1;
pub const VMTRACE_OP_GLOB: u32 = 2;
pub const VMTRACE_FILTER_KEEP: u32 = 65535;
pub const VMTRACE_FILTER_LEAVE: u32 = 65534;
pub const VMTRACE_FILTER_TESTS: u32 = 256;
pub const VMTRACE_FILTER_EXPR: u32 = 400;
pub const VMTRACE_FILTER_TEXTS: u32 = 4096;
pub const VMTRACE_FLUSH_MIN: u32 = 100;
pub const VMTRACE_FLUSH_MAX: u32 = 60000;
pub const VMTRACE_FLUSH_DEFAULT: u32 = 800;
pub const VMTRACE_FLUSH_NEVER: u32 = 65535;
pub const VMTRACE_STALL_MIN: u32 = 1000;
pub const VMTRACE_STALL_MAX: u32 = 3600000;
pub const VMTRACE_STALL_DEFAULT: u32 = 10000;
pub const VMTRACE_INTERVAL_MIN: u32 = 1000000;
pub const VMTRACE_INTERVAL_MAX: u64 = 3600000000000;
pub const VMTRACE_SAMPLE_MIN: u32 = 100000;
pub const VMTRACE_CHANGE_MAX: u32 = 1000;
pub const VMTRACE_REGIONS_MIN: u32 = 3;
pub const VMTRACE_REGIONS_MAX: u32 = 65536;
pub const VMTRACE_STATE_OFF: u32 = 0;
pub const VMTRACE_STATE_ON: u32 = 1;
pub const VMTRACE_STATE_FAILED: u32 = 2;
pub const VMTRACE_STATE_EARLY: u32 = 3;
pub const VMTRACE_STATE_ENDING: u32 = 4;
pub const VMTRACE_IOC_MAGIC: u32 = 183;
pub type __u8 = ::core::ffi::c_uchar;
pub type __u16 = ::core::ffi::c_ushort;
pub type __s32 = ::core::ffi::c_int;
pub type __u32 = ::core::ffi::c_uint;
pub type __s64 = ::core::ffi::c_longlong;
pub type __u64 = ::core::ffi::c_ulonglong;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_sampling {
    pub sample: __u64,
    pub aggregate: __u64,
    pub update: __u64,
    pub min_regions: __u32,
    pub max_regions: __u32,
    pub by: __u32,
    pub change: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_sampling"][::core::mem::size_of::<vmtrace_sampling>() - 40usize];
    [
        "Alignment of vmtrace_sampling",
    ][::core::mem::align_of::<vmtrace_sampling>() - 8usize];
    [
        "Offset of field: vmtrace_sampling::sample",
    ][::core::mem::offset_of!(vmtrace_sampling, sample) - 0usize];
    [
        "Offset of field: vmtrace_sampling::aggregate",
    ][::core::mem::offset_of!(vmtrace_sampling, aggregate) - 8usize];
    [
        "Offset of field: vmtrace_sampling::update",
    ][::core::mem::offset_of!(vmtrace_sampling, update) - 16usize];
    [
        "Offset of field: vmtrace_sampling::min_regions",
    ][::core::mem::offset_of!(vmtrace_sampling, min_regions) - 24usize];
    [
        "Offset of field: vmtrace_sampling::max_regions",
    ][::core::mem::offset_of!(vmtrace_sampling, max_regions) - 28usize];
    [
        "Offset of field: vmtrace_sampling::by",
    ][::core::mem::offset_of!(vmtrace_sampling, by) - 32usize];
    [
        "Offset of field: vmtrace_sampling::change",
    ][::core::mem::offset_of!(vmtrace_sampling, change) - 36usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_header {
    pub magic: __u64,
    pub version: __u32,
    pub header_size: __u32,
    pub uuid: [__u8; 16usize],
    pub start_time: __u64,
    pub realtime_offset: __s64,
    pub features: __u64,
    pub evms_size: __u32,
    pub first_segment: __u32,
    pub policy: __u32,
    pub scope: __u32,
    pub scope_pid: __s32,
    pub page_shift: __u32,
    pub nr_cpus: __u32,
    pub clock: __u32,
    pub forced_off: __u32,
    pub loss_mode: __u32,
    pub buffer_size: __u32,
    pub nr_buffers: __u32,
    pub stay_shift: __u32,
    pub debug_break: __u32,
    pub release: [::core::ffi::c_char; 128usize],
    pub arch: [::core::ffi::c_char; 64usize],
    pub reserved: [__u8; 3424usize],
    pub sampling: vmtrace_sampling,
    pub interval: __u64,
    pub scope_name: [::core::ffi::c_char; 256usize],
    pub sets: __u32,
    pub batch: __u32,
    pub window_time: __u64,
    pub window_refs: __u64,
    pub warmup: __u64,
    pub skip: __u64,
    pub windows: __u32,
    pub vtime_clock: __u32,
    pub vtime_khz: __u32,
    pub vtime_skip: __u32,
    pub classes: __u32,
    pub crc: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_header"][::core::mem::size_of::<vmtrace_header>() - 4096usize];
    ["Alignment of vmtrace_header"][::core::mem::align_of::<vmtrace_header>() - 8usize];
    [
        "Offset of field: vmtrace_header::magic",
    ][::core::mem::offset_of!(vmtrace_header, magic) - 0usize];
    [
        "Offset of field: vmtrace_header::version",
    ][::core::mem::offset_of!(vmtrace_header, version) - 8usize];
    [
        "Offset of field: vmtrace_header::header_size",
    ][::core::mem::offset_of!(vmtrace_header, header_size) - 12usize];
    [
        "Offset of field: vmtrace_header::uuid",
    ][::core::mem::offset_of!(vmtrace_header, uuid) - 16usize];
    [
        "Offset of field: vmtrace_header::start_time",
    ][::core::mem::offset_of!(vmtrace_header, start_time) - 32usize];
    [
        "Offset of field: vmtrace_header::realtime_offset",
    ][::core::mem::offset_of!(vmtrace_header, realtime_offset) - 40usize];
    [
        "Offset of field: vmtrace_header::features",
    ][::core::mem::offset_of!(vmtrace_header, features) - 48usize];
    [
        "Offset of field: vmtrace_header::evms_size",
    ][::core::mem::offset_of!(vmtrace_header, evms_size) - 56usize];
    [
        "Offset of field: vmtrace_header::first_segment",
    ][::core::mem::offset_of!(vmtrace_header, first_segment) - 60usize];
    [
        "Offset of field: vmtrace_header::policy",
    ][::core::mem::offset_of!(vmtrace_header, policy) - 64usize];
    [
        "Offset of field: vmtrace_header::scope",
    ][::core::mem::offset_of!(vmtrace_header, scope) - 68usize];
    [
        "Offset of field: vmtrace_header::scope_pid",
    ][::core::mem::offset_of!(vmtrace_header, scope_pid) - 72usize];
    [
        "Offset of field: vmtrace_header::page_shift",
    ][::core::mem::offset_of!(vmtrace_header, page_shift) - 76usize];
    [
        "Offset of field: vmtrace_header::nr_cpus",
    ][::core::mem::offset_of!(vmtrace_header, nr_cpus) - 80usize];
    [
        "Offset of field: vmtrace_header::clock",
    ][::core::mem::offset_of!(vmtrace_header, clock) - 84usize];
    [
        "Offset of field: vmtrace_header::forced_off",
    ][::core::mem::offset_of!(vmtrace_header, forced_off) - 88usize];
    [
        "Offset of field: vmtrace_header::loss_mode",
    ][::core::mem::offset_of!(vmtrace_header, loss_mode) - 92usize];
    [
        "Offset of field: vmtrace_header::buffer_size",
    ][::core::mem::offset_of!(vmtrace_header, buffer_size) - 96usize];
    [
        "Offset of field: vmtrace_header::nr_buffers",
    ][::core::mem::offset_of!(vmtrace_header, nr_buffers) - 100usize];
    [
        "Offset of field: vmtrace_header::stay_shift",
    ][::core::mem::offset_of!(vmtrace_header, stay_shift) - 104usize];
    [
        "Offset of field: vmtrace_header::debug_break",
    ][::core::mem::offset_of!(vmtrace_header, debug_break) - 108usize];
    [
        "Offset of field: vmtrace_header::release",
    ][::core::mem::offset_of!(vmtrace_header, release) - 112usize];
    [
        "Offset of field: vmtrace_header::arch",
    ][::core::mem::offset_of!(vmtrace_header, arch) - 240usize];
    [
        "Offset of field: vmtrace_header::reserved",
    ][::core::mem::offset_of!(vmtrace_header, reserved) - 304usize];
    [
        "Offset of field: vmtrace_header::sampling",
    ][::core::mem::offset_of!(vmtrace_header, sampling) - 3728usize];
    [
        "Offset of field: vmtrace_header::interval",
    ][::core::mem::offset_of!(vmtrace_header, interval) - 3768usize];
    [
        "Offset of field: vmtrace_header::scope_name",
    ][::core::mem::offset_of!(vmtrace_header, scope_name) - 3776usize];
    [
        "Offset of field: vmtrace_header::sets",
    ][::core::mem::offset_of!(vmtrace_header, sets) - 4032usize];
    [
        "Offset of field: vmtrace_header::batch",
    ][::core::mem::offset_of!(vmtrace_header, batch) - 4036usize];
    [
        "Offset of field: vmtrace_header::window_time",
    ][::core::mem::offset_of!(vmtrace_header, window_time) - 4040usize];
    [
        "Offset of field: vmtrace_header::window_refs",
    ][::core::mem::offset_of!(vmtrace_header, window_refs) - 4048usize];
    [
        "Offset of field: vmtrace_header::warmup",
    ][::core::mem::offset_of!(vmtrace_header, warmup) - 4056usize];
    [
        "Offset of field: vmtrace_header::skip",
    ][::core::mem::offset_of!(vmtrace_header, skip) - 4064usize];
    [
        "Offset of field: vmtrace_header::windows",
    ][::core::mem::offset_of!(vmtrace_header, windows) - 4072usize];
    [
        "Offset of field: vmtrace_header::vtime_clock",
    ][::core::mem::offset_of!(vmtrace_header, vtime_clock) - 4076usize];
    [
        "Offset of field: vmtrace_header::vtime_khz",
    ][::core::mem::offset_of!(vmtrace_header, vtime_khz) - 4080usize];
    [
        "Offset of field: vmtrace_header::vtime_skip",
    ][::core::mem::offset_of!(vmtrace_header, vtime_skip) - 4084usize];
    [
        "Offset of field: vmtrace_header::classes",
    ][::core::mem::offset_of!(vmtrace_header, classes) - 4088usize];
    [
        "Offset of field: vmtrace_header::crc",
    ][::core::mem::offset_of!(vmtrace_header, crc) - 4092usize];
};
impl Default for vmtrace_header {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Copy, Clone, zerocopy::FromBytes)]
pub struct vmtrace_packet {
    pub magic: __u64,
    pub uuid: [__u8; 16usize],
    pub kind: __u16,
    pub codec: __u16,
    pub cpu: __u32,
    pub seq: __u64,
    pub first_seq: __u64,
    pub last_seq: __u64,
    pub first_time: __u64,
    pub last_time: __u64,
    pub lost_full: __u64,
    pub __bindgen_anon_1: vmtrace_packet__bindgen_ty_1,
    pub lost_io: __u32,
    pub raw_size: __u32,
    pub records: __u32,
    pub content_size: __u32,
    pub window: __u32,
    pub crc: __u32,
}
#[repr(C)]
#[derive(Copy, Clone, zerocopy::FromBytes)]
pub union vmtrace_packet__bindgen_ty_1 {
    pub lost_atomic: __u64,
    pub set: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of vmtrace_packet__bindgen_ty_1",
    ][::core::mem::size_of::<vmtrace_packet__bindgen_ty_1>() - 8usize];
    [
        "Alignment of vmtrace_packet__bindgen_ty_1",
    ][::core::mem::align_of::<vmtrace_packet__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: vmtrace_packet__bindgen_ty_1::lost_atomic",
    ][::core::mem::offset_of!(vmtrace_packet__bindgen_ty_1, lost_atomic) - 0usize];
    [
        "Offset of field: vmtrace_packet__bindgen_ty_1::set",
    ][::core::mem::offset_of!(vmtrace_packet__bindgen_ty_1, set) - 0usize];
};
impl Default for vmtrace_packet__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_packet"][::core::mem::size_of::<vmtrace_packet>() - 112usize];
    ["Alignment of vmtrace_packet"][::core::mem::align_of::<vmtrace_packet>() - 8usize];
    [
        "Offset of field: vmtrace_packet::magic",
    ][::core::mem::offset_of!(vmtrace_packet, magic) - 0usize];
    [
        "Offset of field: vmtrace_packet::uuid",
    ][::core::mem::offset_of!(vmtrace_packet, uuid) - 8usize];
    [
        "Offset of field: vmtrace_packet::kind",
    ][::core::mem::offset_of!(vmtrace_packet, kind) - 24usize];
    [
        "Offset of field: vmtrace_packet::codec",
    ][::core::mem::offset_of!(vmtrace_packet, codec) - 26usize];
    [
        "Offset of field: vmtrace_packet::cpu",
    ][::core::mem::offset_of!(vmtrace_packet, cpu) - 28usize];
    [
        "Offset of field: vmtrace_packet::seq",
    ][::core::mem::offset_of!(vmtrace_packet, seq) - 32usize];
    [
        "Offset of field: vmtrace_packet::first_seq",
    ][::core::mem::offset_of!(vmtrace_packet, first_seq) - 40usize];
    [
        "Offset of field: vmtrace_packet::last_seq",
    ][::core::mem::offset_of!(vmtrace_packet, last_seq) - 48usize];
    [
        "Offset of field: vmtrace_packet::first_time",
    ][::core::mem::offset_of!(vmtrace_packet, first_time) - 56usize];
    [
        "Offset of field: vmtrace_packet::last_time",
    ][::core::mem::offset_of!(vmtrace_packet, last_time) - 64usize];
    [
        "Offset of field: vmtrace_packet::lost_full",
    ][::core::mem::offset_of!(vmtrace_packet, lost_full) - 72usize];
    [
        "Offset of field: vmtrace_packet::lost_io",
    ][::core::mem::offset_of!(vmtrace_packet, lost_io) - 88usize];
    [
        "Offset of field: vmtrace_packet::raw_size",
    ][::core::mem::offset_of!(vmtrace_packet, raw_size) - 92usize];
    [
        "Offset of field: vmtrace_packet::records",
    ][::core::mem::offset_of!(vmtrace_packet, records) - 96usize];
    [
        "Offset of field: vmtrace_packet::content_size",
    ][::core::mem::offset_of!(vmtrace_packet, content_size) - 100usize];
    [
        "Offset of field: vmtrace_packet::window",
    ][::core::mem::offset_of!(vmtrace_packet, window) - 104usize];
    [
        "Offset of field: vmtrace_packet::crc",
    ][::core::mem::offset_of!(vmtrace_packet, crc) - 108usize];
};
impl Default for vmtrace_packet {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_packed {
    pub numbers: __u32,
    pub time: __u32,
    pub tid_cpu: __u32,
    pub lag: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_packed"][::core::mem::size_of::<vmtrace_packed>() - 16usize];
    ["Alignment of vmtrace_packed"][::core::mem::align_of::<vmtrace_packed>() - 4usize];
    [
        "Offset of field: vmtrace_packed::numbers",
    ][::core::mem::offset_of!(vmtrace_packed, numbers) - 0usize];
    [
        "Offset of field: vmtrace_packed::time",
    ][::core::mem::offset_of!(vmtrace_packed, time) - 4usize];
    [
        "Offset of field: vmtrace_packed::tid_cpu",
    ][::core::mem::offset_of!(vmtrace_packed, tid_cpu) - 8usize];
    [
        "Offset of field: vmtrace_packed::lag",
    ][::core::mem::offset_of!(vmtrace_packed, lag) - 12usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_window {
    pub number: __u32,
    pub why: __u32,
    pub start_time: __u64,
    pub stop_time: __u64,
    pub first_seq: __u64,
    pub last_seq: __u64,
    pub admissions: __u64,
    pub refs: __u64,
    pub events: __u64,
    pub aborted: __u64,
    pub renewed: __u64,
    pub chances: __u64,
    pub lost_full: __u64,
    pub lost_atomic: __u64,
    pub lost_io: __u64,
    pub funny: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_window"][::core::mem::size_of::<vmtrace_window>() - 120usize];
    ["Alignment of vmtrace_window"][::core::mem::align_of::<vmtrace_window>() - 8usize];
    [
        "Offset of field: vmtrace_window::number",
    ][::core::mem::offset_of!(vmtrace_window, number) - 0usize];
    [
        "Offset of field: vmtrace_window::why",
    ][::core::mem::offset_of!(vmtrace_window, why) - 4usize];
    [
        "Offset of field: vmtrace_window::start_time",
    ][::core::mem::offset_of!(vmtrace_window, start_time) - 8usize];
    [
        "Offset of field: vmtrace_window::stop_time",
    ][::core::mem::offset_of!(vmtrace_window, stop_time) - 16usize];
    [
        "Offset of field: vmtrace_window::first_seq",
    ][::core::mem::offset_of!(vmtrace_window, first_seq) - 24usize];
    [
        "Offset of field: vmtrace_window::last_seq",
    ][::core::mem::offset_of!(vmtrace_window, last_seq) - 32usize];
    [
        "Offset of field: vmtrace_window::admissions",
    ][::core::mem::offset_of!(vmtrace_window, admissions) - 40usize];
    [
        "Offset of field: vmtrace_window::refs",
    ][::core::mem::offset_of!(vmtrace_window, refs) - 48usize];
    [
        "Offset of field: vmtrace_window::events",
    ][::core::mem::offset_of!(vmtrace_window, events) - 56usize];
    [
        "Offset of field: vmtrace_window::aborted",
    ][::core::mem::offset_of!(vmtrace_window, aborted) - 64usize];
    [
        "Offset of field: vmtrace_window::renewed",
    ][::core::mem::offset_of!(vmtrace_window, renewed) - 72usize];
    [
        "Offset of field: vmtrace_window::chances",
    ][::core::mem::offset_of!(vmtrace_window, chances) - 80usize];
    [
        "Offset of field: vmtrace_window::lost_full",
    ][::core::mem::offset_of!(vmtrace_window, lost_full) - 88usize];
    [
        "Offset of field: vmtrace_window::lost_atomic",
    ][::core::mem::offset_of!(vmtrace_window, lost_atomic) - 96usize];
    [
        "Offset of field: vmtrace_window::lost_io",
    ][::core::mem::offset_of!(vmtrace_window, lost_io) - 104usize];
    [
        "Offset of field: vmtrace_window::funny",
    ][::core::mem::offset_of!(vmtrace_window, funny) - 112usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_piece {
    pub number: __u32,
    pub flags: __u32,
    pub first_seq: __u64,
    pub offset: __u64,
    pub crc: __u32,
    pub pad: __u32,
    pub state_seq: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_piece"][::core::mem::size_of::<vmtrace_piece>() - 40usize];
    ["Alignment of vmtrace_piece"][::core::mem::align_of::<vmtrace_piece>() - 8usize];
    [
        "Offset of field: vmtrace_piece::number",
    ][::core::mem::offset_of!(vmtrace_piece, number) - 0usize];
    [
        "Offset of field: vmtrace_piece::flags",
    ][::core::mem::offset_of!(vmtrace_piece, flags) - 4usize];
    [
        "Offset of field: vmtrace_piece::first_seq",
    ][::core::mem::offset_of!(vmtrace_piece, first_seq) - 8usize];
    [
        "Offset of field: vmtrace_piece::offset",
    ][::core::mem::offset_of!(vmtrace_piece, offset) - 16usize];
    [
        "Offset of field: vmtrace_piece::crc",
    ][::core::mem::offset_of!(vmtrace_piece, crc) - 24usize];
    [
        "Offset of field: vmtrace_piece::pad",
    ][::core::mem::offset_of!(vmtrace_piece, pad) - 28usize];
    [
        "Offset of field: vmtrace_piece::state_seq",
    ][::core::mem::offset_of!(vmtrace_piece, state_seq) - 32usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_piece_end {
    pub number: __u32,
    pub flags: __u32,
    pub size: __u64,
    pub crc: __u32,
    pub unaccounted: __u32,
    pub next_seq: __u64,
    pub start_time: __u64,
    pub stop_time: __u64,
    pub packets: __u64,
    pub admissions: __u64,
    pub refs: __u64,
    pub events: __u64,
    pub aborted: __u64,
    pub renewed: __u64,
    pub chances: __u64,
    pub lost_full: __u64,
    pub lost_atomic: __u64,
    pub lost_io: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of vmtrace_piece_end",
    ][::core::mem::size_of::<vmtrace_piece_end>() - 128usize];
    [
        "Alignment of vmtrace_piece_end",
    ][::core::mem::align_of::<vmtrace_piece_end>() - 8usize];
    [
        "Offset of field: vmtrace_piece_end::number",
    ][::core::mem::offset_of!(vmtrace_piece_end, number) - 0usize];
    [
        "Offset of field: vmtrace_piece_end::flags",
    ][::core::mem::offset_of!(vmtrace_piece_end, flags) - 4usize];
    [
        "Offset of field: vmtrace_piece_end::size",
    ][::core::mem::offset_of!(vmtrace_piece_end, size) - 8usize];
    [
        "Offset of field: vmtrace_piece_end::crc",
    ][::core::mem::offset_of!(vmtrace_piece_end, crc) - 16usize];
    [
        "Offset of field: vmtrace_piece_end::unaccounted",
    ][::core::mem::offset_of!(vmtrace_piece_end, unaccounted) - 20usize];
    [
        "Offset of field: vmtrace_piece_end::next_seq",
    ][::core::mem::offset_of!(vmtrace_piece_end, next_seq) - 24usize];
    [
        "Offset of field: vmtrace_piece_end::start_time",
    ][::core::mem::offset_of!(vmtrace_piece_end, start_time) - 32usize];
    [
        "Offset of field: vmtrace_piece_end::stop_time",
    ][::core::mem::offset_of!(vmtrace_piece_end, stop_time) - 40usize];
    [
        "Offset of field: vmtrace_piece_end::packets",
    ][::core::mem::offset_of!(vmtrace_piece_end, packets) - 48usize];
    [
        "Offset of field: vmtrace_piece_end::admissions",
    ][::core::mem::offset_of!(vmtrace_piece_end, admissions) - 56usize];
    [
        "Offset of field: vmtrace_piece_end::refs",
    ][::core::mem::offset_of!(vmtrace_piece_end, refs) - 64usize];
    [
        "Offset of field: vmtrace_piece_end::events",
    ][::core::mem::offset_of!(vmtrace_piece_end, events) - 72usize];
    [
        "Offset of field: vmtrace_piece_end::aborted",
    ][::core::mem::offset_of!(vmtrace_piece_end, aborted) - 80usize];
    [
        "Offset of field: vmtrace_piece_end::renewed",
    ][::core::mem::offset_of!(vmtrace_piece_end, renewed) - 88usize];
    [
        "Offset of field: vmtrace_piece_end::chances",
    ][::core::mem::offset_of!(vmtrace_piece_end, chances) - 96usize];
    [
        "Offset of field: vmtrace_piece_end::lost_full",
    ][::core::mem::offset_of!(vmtrace_piece_end, lost_full) - 104usize];
    [
        "Offset of field: vmtrace_piece_end::lost_atomic",
    ][::core::mem::offset_of!(vmtrace_piece_end, lost_atomic) - 112usize];
    [
        "Offset of field: vmtrace_piece_end::lost_io",
    ][::core::mem::offset_of!(vmtrace_piece_end, lost_io) - 120usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ref {
    pub page: __u64,
    pub seq: __u32,
    pub time: __u32,
    pub tid_cpu: __u32,
    pub mm: __u32,
    pub stay: __u32,
    pub pfn: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ref"][::core::mem::size_of::<vmtrace_ref>() - 32usize];
    ["Alignment of vmtrace_ref"][::core::mem::align_of::<vmtrace_ref>() - 8usize];
    [
        "Offset of field: vmtrace_ref::page",
    ][::core::mem::offset_of!(vmtrace_ref, page) - 0usize];
    [
        "Offset of field: vmtrace_ref::seq",
    ][::core::mem::offset_of!(vmtrace_ref, seq) - 8usize];
    [
        "Offset of field: vmtrace_ref::time",
    ][::core::mem::offset_of!(vmtrace_ref, time) - 12usize];
    [
        "Offset of field: vmtrace_ref::tid_cpu",
    ][::core::mem::offset_of!(vmtrace_ref, tid_cpu) - 16usize];
    [
        "Offset of field: vmtrace_ref::mm",
    ][::core::mem::offset_of!(vmtrace_ref, mm) - 20usize];
    [
        "Offset of field: vmtrace_ref::stay",
    ][::core::mem::offset_of!(vmtrace_ref, stay) - 24usize];
    [
        "Offset of field: vmtrace_ref::pfn",
    ][::core::mem::offset_of!(vmtrace_ref, pfn) - 28usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_event {
    pub type_: __u16,
    pub size: __u16,
    pub flags: __u32,
    pub seq: __u64,
    pub time: __u64,
    pub tid: __u32,
    pub tgid: __u32,
    pub mm: __u32,
    pub cpu: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_event"][::core::mem::size_of::<vmtrace_event>() - 40usize];
    ["Alignment of vmtrace_event"][::core::mem::align_of::<vmtrace_event>() - 8usize];
    [
        "Offset of field: vmtrace_event::type_",
    ][::core::mem::offset_of!(vmtrace_event, type_) - 0usize];
    [
        "Offset of field: vmtrace_event::size",
    ][::core::mem::offset_of!(vmtrace_event, size) - 2usize];
    [
        "Offset of field: vmtrace_event::flags",
    ][::core::mem::offset_of!(vmtrace_event, flags) - 4usize];
    [
        "Offset of field: vmtrace_event::seq",
    ][::core::mem::offset_of!(vmtrace_event, seq) - 8usize];
    [
        "Offset of field: vmtrace_event::time",
    ][::core::mem::offset_of!(vmtrace_event, time) - 16usize];
    [
        "Offset of field: vmtrace_event::tid",
    ][::core::mem::offset_of!(vmtrace_event, tid) - 24usize];
    [
        "Offset of field: vmtrace_event::tgid",
    ][::core::mem::offset_of!(vmtrace_event, tgid) - 28usize];
    [
        "Offset of field: vmtrace_event::mm",
    ][::core::mem::offset_of!(vmtrace_event, mm) - 32usize];
    [
        "Offset of field: vmtrace_event::cpu",
    ][::core::mem::offset_of!(vmtrace_event, cpu) - 36usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_map {
    pub start: __u64,
    pub end: __u64,
    pub offset: __u64,
    pub dev: __u64,
    pub ino: __u64,
    pub generation: __u32,
    pub prot: __u32,
    pub flags: __u32,
    pub kind: __u16,
    pub cause: __u16,
    pub name_len: __u32,
    pub pad: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_map"][::core::mem::size_of::<vmtrace_ev_map>() - 64usize];
    ["Alignment of vmtrace_ev_map"][::core::mem::align_of::<vmtrace_ev_map>() - 8usize];
    [
        "Offset of field: vmtrace_ev_map::start",
    ][::core::mem::offset_of!(vmtrace_ev_map, start) - 0usize];
    [
        "Offset of field: vmtrace_ev_map::end",
    ][::core::mem::offset_of!(vmtrace_ev_map, end) - 8usize];
    [
        "Offset of field: vmtrace_ev_map::offset",
    ][::core::mem::offset_of!(vmtrace_ev_map, offset) - 16usize];
    [
        "Offset of field: vmtrace_ev_map::dev",
    ][::core::mem::offset_of!(vmtrace_ev_map, dev) - 24usize];
    [
        "Offset of field: vmtrace_ev_map::ino",
    ][::core::mem::offset_of!(vmtrace_ev_map, ino) - 32usize];
    [
        "Offset of field: vmtrace_ev_map::generation",
    ][::core::mem::offset_of!(vmtrace_ev_map, generation) - 40usize];
    [
        "Offset of field: vmtrace_ev_map::prot",
    ][::core::mem::offset_of!(vmtrace_ev_map, prot) - 44usize];
    [
        "Offset of field: vmtrace_ev_map::flags",
    ][::core::mem::offset_of!(vmtrace_ev_map, flags) - 48usize];
    [
        "Offset of field: vmtrace_ev_map::kind",
    ][::core::mem::offset_of!(vmtrace_ev_map, kind) - 52usize];
    [
        "Offset of field: vmtrace_ev_map::cause",
    ][::core::mem::offset_of!(vmtrace_ev_map, cause) - 54usize];
    [
        "Offset of field: vmtrace_ev_map::name_len",
    ][::core::mem::offset_of!(vmtrace_ev_map, name_len) - 56usize];
    [
        "Offset of field: vmtrace_ev_map::pad",
    ][::core::mem::offset_of!(vmtrace_ev_map, pad) - 60usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_range {
    pub start: __u64,
    pub end: __u64,
    pub arg: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_range"][::core::mem::size_of::<vmtrace_ev_range>() - 24usize];
    [
        "Alignment of vmtrace_ev_range",
    ][::core::mem::align_of::<vmtrace_ev_range>() - 8usize];
    [
        "Offset of field: vmtrace_ev_range::start",
    ][::core::mem::offset_of!(vmtrace_ev_range, start) - 0usize];
    [
        "Offset of field: vmtrace_ev_range::end",
    ][::core::mem::offset_of!(vmtrace_ev_range, end) - 8usize];
    [
        "Offset of field: vmtrace_ev_range::arg",
    ][::core::mem::offset_of!(vmtrace_ev_range, arg) - 16usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_resize {
    pub from: __u32,
    pub to: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_resize"][::core::mem::size_of::<vmtrace_ev_resize>() - 8usize];
    [
        "Alignment of vmtrace_ev_resize",
    ][::core::mem::align_of::<vmtrace_ev_resize>() - 4usize];
    [
        "Offset of field: vmtrace_ev_resize::from",
    ][::core::mem::offset_of!(vmtrace_ev_resize, from) - 0usize];
    [
        "Offset of field: vmtrace_ev_resize::to",
    ][::core::mem::offset_of!(vmtrace_ev_resize, to) - 4usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_set {
    pub set: __u32,
    pub pad: __u32,
    pub cgroup: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_set"][::core::mem::size_of::<vmtrace_ev_set>() - 16usize];
    ["Alignment of vmtrace_ev_set"][::core::mem::align_of::<vmtrace_ev_set>() - 8usize];
    [
        "Offset of field: vmtrace_ev_set::set",
    ][::core::mem::offset_of!(vmtrace_ev_set, set) - 0usize];
    [
        "Offset of field: vmtrace_ev_set::pad",
    ][::core::mem::offset_of!(vmtrace_ev_set, pad) - 4usize];
    [
        "Offset of field: vmtrace_ev_set::cgroup",
    ][::core::mem::offset_of!(vmtrace_ev_set, cgroup) - 8usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_move {
    pub old_start: __u64,
    pub old_len: __u64,
    pub new_start: __u64,
    pub new_len: __u64,
    pub flags: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_move"][::core::mem::size_of::<vmtrace_ev_move>() - 40usize];
    [
        "Alignment of vmtrace_ev_move",
    ][::core::mem::align_of::<vmtrace_ev_move>() - 8usize];
    [
        "Offset of field: vmtrace_ev_move::old_start",
    ][::core::mem::offset_of!(vmtrace_ev_move, old_start) - 0usize];
    [
        "Offset of field: vmtrace_ev_move::old_len",
    ][::core::mem::offset_of!(vmtrace_ev_move, old_len) - 8usize];
    [
        "Offset of field: vmtrace_ev_move::new_start",
    ][::core::mem::offset_of!(vmtrace_ev_move, new_start) - 16usize];
    [
        "Offset of field: vmtrace_ev_move::new_len",
    ][::core::mem::offset_of!(vmtrace_ev_move, new_len) - 24usize];
    [
        "Offset of field: vmtrace_ev_move::flags",
    ][::core::mem::offset_of!(vmtrace_ev_move, flags) - 32usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_page {
    pub page: __u64,
    pub old_pfn: __u64,
    pub new_pfn: __u64,
    pub arg: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_page"][::core::mem::size_of::<vmtrace_ev_page>() - 32usize];
    [
        "Alignment of vmtrace_ev_page",
    ][::core::mem::align_of::<vmtrace_ev_page>() - 8usize];
    [
        "Offset of field: vmtrace_ev_page::page",
    ][::core::mem::offset_of!(vmtrace_ev_page, page) - 0usize];
    [
        "Offset of field: vmtrace_ev_page::old_pfn",
    ][::core::mem::offset_of!(vmtrace_ev_page, old_pfn) - 8usize];
    [
        "Offset of field: vmtrace_ev_page::new_pfn",
    ][::core::mem::offset_of!(vmtrace_ev_page, new_pfn) - 16usize];
    [
        "Offset of field: vmtrace_ev_page::arg",
    ][::core::mem::offset_of!(vmtrace_ev_page, arg) - 24usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_mm_dup {
    pub parent: __u32,
    pub pad: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_mm_dup"][::core::mem::size_of::<vmtrace_ev_mm_dup>() - 8usize];
    [
        "Alignment of vmtrace_ev_mm_dup",
    ][::core::mem::align_of::<vmtrace_ev_mm_dup>() - 4usize];
    [
        "Offset of field: vmtrace_ev_mm_dup::parent",
    ][::core::mem::offset_of!(vmtrace_ev_mm_dup, parent) - 0usize];
    [
        "Offset of field: vmtrace_ev_mm_dup::pad",
    ][::core::mem::offset_of!(vmtrace_ev_mm_dup, pad) - 4usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_fork {
    pub child_tid: __u32,
    pub child_tgid: __u32,
    pub child_mm: __u32,
    pub pad: __u32,
    pub clone_flags: __u64,
    pub child_start: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_fork"][::core::mem::size_of::<vmtrace_ev_fork>() - 32usize];
    [
        "Alignment of vmtrace_ev_fork",
    ][::core::mem::align_of::<vmtrace_ev_fork>() - 8usize];
    [
        "Offset of field: vmtrace_ev_fork::child_tid",
    ][::core::mem::offset_of!(vmtrace_ev_fork, child_tid) - 0usize];
    [
        "Offset of field: vmtrace_ev_fork::child_tgid",
    ][::core::mem::offset_of!(vmtrace_ev_fork, child_tgid) - 4usize];
    [
        "Offset of field: vmtrace_ev_fork::child_mm",
    ][::core::mem::offset_of!(vmtrace_ev_fork, child_mm) - 8usize];
    [
        "Offset of field: vmtrace_ev_fork::pad",
    ][::core::mem::offset_of!(vmtrace_ev_fork, pad) - 12usize];
    [
        "Offset of field: vmtrace_ev_fork::clone_flags",
    ][::core::mem::offset_of!(vmtrace_ev_fork, clone_flags) - 16usize];
    [
        "Offset of field: vmtrace_ev_fork::child_start",
    ][::core::mem::offset_of!(vmtrace_ev_fork, child_start) - 24usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_exec {
    pub old_mm: __u32,
    pub name_len: __u32,
    pub dev: __u64,
    pub ino: __u64,
    pub comm: [::core::ffi::c_char; 16usize],
    pub generation: __u32,
    pub pad: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_exec"][::core::mem::size_of::<vmtrace_ev_exec>() - 48usize];
    [
        "Alignment of vmtrace_ev_exec",
    ][::core::mem::align_of::<vmtrace_ev_exec>() - 8usize];
    [
        "Offset of field: vmtrace_ev_exec::old_mm",
    ][::core::mem::offset_of!(vmtrace_ev_exec, old_mm) - 0usize];
    [
        "Offset of field: vmtrace_ev_exec::name_len",
    ][::core::mem::offset_of!(vmtrace_ev_exec, name_len) - 4usize];
    [
        "Offset of field: vmtrace_ev_exec::dev",
    ][::core::mem::offset_of!(vmtrace_ev_exec, dev) - 8usize];
    [
        "Offset of field: vmtrace_ev_exec::ino",
    ][::core::mem::offset_of!(vmtrace_ev_exec, ino) - 16usize];
    [
        "Offset of field: vmtrace_ev_exec::comm",
    ][::core::mem::offset_of!(vmtrace_ev_exec, comm) - 24usize];
    [
        "Offset of field: vmtrace_ev_exec::generation",
    ][::core::mem::offset_of!(vmtrace_ev_exec, generation) - 40usize];
    [
        "Offset of field: vmtrace_ev_exec::pad",
    ][::core::mem::offset_of!(vmtrace_ev_exec, pad) - 44usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_exit {
    pub utime: __u64,
    pub stime: __u64,
    pub code: __s32,
    pub pad: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_exit"][::core::mem::size_of::<vmtrace_ev_exit>() - 24usize];
    [
        "Alignment of vmtrace_ev_exit",
    ][::core::mem::align_of::<vmtrace_ev_exit>() - 8usize];
    [
        "Offset of field: vmtrace_ev_exit::utime",
    ][::core::mem::offset_of!(vmtrace_ev_exit, utime) - 0usize];
    [
        "Offset of field: vmtrace_ev_exit::stime",
    ][::core::mem::offset_of!(vmtrace_ev_exit, stime) - 8usize];
    [
        "Offset of field: vmtrace_ev_exit::code",
    ][::core::mem::offset_of!(vmtrace_ev_exit, code) - 16usize];
    [
        "Offset of field: vmtrace_ev_exit::pad",
    ][::core::mem::offset_of!(vmtrace_ev_exit, pad) - 20usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_task {
    pub tid: __u32,
    pub tgid: __u32,
    pub parent: __u32,
    pub pad: __u32,
    pub comm: [::core::ffi::c_char; 16usize],
    pub start: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_task"][::core::mem::size_of::<vmtrace_ev_task>() - 40usize];
    [
        "Alignment of vmtrace_ev_task",
    ][::core::mem::align_of::<vmtrace_ev_task>() - 8usize];
    [
        "Offset of field: vmtrace_ev_task::tid",
    ][::core::mem::offset_of!(vmtrace_ev_task, tid) - 0usize];
    [
        "Offset of field: vmtrace_ev_task::tgid",
    ][::core::mem::offset_of!(vmtrace_ev_task, tgid) - 4usize];
    [
        "Offset of field: vmtrace_ev_task::parent",
    ][::core::mem::offset_of!(vmtrace_ev_task, parent) - 8usize];
    [
        "Offset of field: vmtrace_ev_task::pad",
    ][::core::mem::offset_of!(vmtrace_ev_task, pad) - 12usize];
    [
        "Offset of field: vmtrace_ev_task::comm",
    ][::core::mem::offset_of!(vmtrace_ev_task, comm) - 16usize];
    [
        "Offset of field: vmtrace_ev_task::start",
    ][::core::mem::offset_of!(vmtrace_ev_task, start) - 32usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_switch {
    pub prev: __u32,
    pub next: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_switch"][::core::mem::size_of::<vmtrace_ev_switch>() - 8usize];
    [
        "Alignment of vmtrace_ev_switch",
    ][::core::mem::align_of::<vmtrace_ev_switch>() - 4usize];
    [
        "Offset of field: vmtrace_ev_switch::prev",
    ][::core::mem::offset_of!(vmtrace_ev_switch, prev) - 0usize];
    [
        "Offset of field: vmtrace_ev_switch::next",
    ][::core::mem::offset_of!(vmtrace_ev_switch, next) - 4usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_cgroup {
    pub tid: __u32,
    pub tgid: __u32,
    pub name_len: __u32,
    pub pad: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_cgroup"][::core::mem::size_of::<vmtrace_ev_cgroup>() - 16usize];
    [
        "Alignment of vmtrace_ev_cgroup",
    ][::core::mem::align_of::<vmtrace_ev_cgroup>() - 4usize];
    [
        "Offset of field: vmtrace_ev_cgroup::tid",
    ][::core::mem::offset_of!(vmtrace_ev_cgroup, tid) - 0usize];
    [
        "Offset of field: vmtrace_ev_cgroup::tgid",
    ][::core::mem::offset_of!(vmtrace_ev_cgroup, tgid) - 4usize];
    [
        "Offset of field: vmtrace_ev_cgroup::name_len",
    ][::core::mem::offset_of!(vmtrace_ev_cgroup, name_len) - 8usize];
    [
        "Offset of field: vmtrace_ev_cgroup::pad",
    ][::core::mem::offset_of!(vmtrace_ev_cgroup, pad) - 12usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_shm {
    pub start: __u64,
    pub end: __u64,
    pub dev: __u64,
    pub ino: __u64,
    pub shmid: __s32,
    pub generation: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_shm"][::core::mem::size_of::<vmtrace_ev_shm>() - 40usize];
    ["Alignment of vmtrace_ev_shm"][::core::mem::align_of::<vmtrace_ev_shm>() - 8usize];
    [
        "Offset of field: vmtrace_ev_shm::start",
    ][::core::mem::offset_of!(vmtrace_ev_shm, start) - 0usize];
    [
        "Offset of field: vmtrace_ev_shm::end",
    ][::core::mem::offset_of!(vmtrace_ev_shm, end) - 8usize];
    [
        "Offset of field: vmtrace_ev_shm::dev",
    ][::core::mem::offset_of!(vmtrace_ev_shm, dev) - 16usize];
    [
        "Offset of field: vmtrace_ev_shm::ino",
    ][::core::mem::offset_of!(vmtrace_ev_shm, ino) - 24usize];
    [
        "Offset of field: vmtrace_ev_shm::shmid",
    ][::core::mem::offset_of!(vmtrace_ev_shm, shmid) - 32usize];
    [
        "Offset of field: vmtrace_ev_shm::generation",
    ][::core::mem::offset_of!(vmtrace_ev_shm, generation) - 36usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_checkpoint {
    pub last_mm: __u32,
    pub pad: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of vmtrace_ev_checkpoint",
    ][::core::mem::size_of::<vmtrace_ev_checkpoint>() - 8usize];
    [
        "Alignment of vmtrace_ev_checkpoint",
    ][::core::mem::align_of::<vmtrace_ev_checkpoint>() - 4usize];
    [
        "Offset of field: vmtrace_ev_checkpoint::last_mm",
    ][::core::mem::offset_of!(vmtrace_ev_checkpoint, last_mm) - 0usize];
    [
        "Offset of field: vmtrace_ev_checkpoint::pad",
    ][::core::mem::offset_of!(vmtrace_ev_checkpoint, pad) - 4usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_filter {
    pub nr_tests: __u32,
    pub expr_len: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_filter"][::core::mem::size_of::<vmtrace_ev_filter>() - 8usize];
    [
        "Alignment of vmtrace_ev_filter",
    ][::core::mem::align_of::<vmtrace_ev_filter>() - 4usize];
    [
        "Offset of field: vmtrace_ev_filter::nr_tests",
    ][::core::mem::offset_of!(vmtrace_ev_filter, nr_tests) - 0usize];
    [
        "Offset of field: vmtrace_ev_filter::expr_len",
    ][::core::mem::offset_of!(vmtrace_ev_filter, expr_len) - 4usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_region {
    pub start: __u64,
    pub end: __u64,
    pub looks: __u32,
    pub accesses: __u32,
    pub writes: __u32,
    pub age: __u32,
    pub cpus: __u64,
    pub index: __u32,
    pub regions: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_region"][::core::mem::size_of::<vmtrace_ev_region>() - 48usize];
    [
        "Alignment of vmtrace_ev_region",
    ][::core::mem::align_of::<vmtrace_ev_region>() - 8usize];
    [
        "Offset of field: vmtrace_ev_region::start",
    ][::core::mem::offset_of!(vmtrace_ev_region, start) - 0usize];
    [
        "Offset of field: vmtrace_ev_region::end",
    ][::core::mem::offset_of!(vmtrace_ev_region, end) - 8usize];
    [
        "Offset of field: vmtrace_ev_region::looks",
    ][::core::mem::offset_of!(vmtrace_ev_region, looks) - 16usize];
    [
        "Offset of field: vmtrace_ev_region::accesses",
    ][::core::mem::offset_of!(vmtrace_ev_region, accesses) - 20usize];
    [
        "Offset of field: vmtrace_ev_region::writes",
    ][::core::mem::offset_of!(vmtrace_ev_region, writes) - 24usize];
    [
        "Offset of field: vmtrace_ev_region::age",
    ][::core::mem::offset_of!(vmtrace_ev_region, age) - 28usize];
    [
        "Offset of field: vmtrace_ev_region::cpus",
    ][::core::mem::offset_of!(vmtrace_ev_region, cpus) - 32usize];
    [
        "Offset of field: vmtrace_ev_region::index",
    ][::core::mem::offset_of!(vmtrace_ev_region, index) - 40usize];
    [
        "Offset of field: vmtrace_ev_region::regions",
    ][::core::mem::offset_of!(vmtrace_ev_region, regions) - 44usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_file {
    pub dev: __u64,
    pub ino: __u64,
    pub length: __u64,
    pub generation: __u32,
    pub kind: __u32,
    pub name_len: __u32,
    pub pad: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_file"][::core::mem::size_of::<vmtrace_ev_file>() - 40usize];
    [
        "Alignment of vmtrace_ev_file",
    ][::core::mem::align_of::<vmtrace_ev_file>() - 8usize];
    [
        "Offset of field: vmtrace_ev_file::dev",
    ][::core::mem::offset_of!(vmtrace_ev_file, dev) - 0usize];
    [
        "Offset of field: vmtrace_ev_file::ino",
    ][::core::mem::offset_of!(vmtrace_ev_file, ino) - 8usize];
    [
        "Offset of field: vmtrace_ev_file::length",
    ][::core::mem::offset_of!(vmtrace_ev_file, length) - 16usize];
    [
        "Offset of field: vmtrace_ev_file::generation",
    ][::core::mem::offset_of!(vmtrace_ev_file, generation) - 24usize];
    [
        "Offset of field: vmtrace_ev_file::kind",
    ][::core::mem::offset_of!(vmtrace_ev_file, kind) - 28usize];
    [
        "Offset of field: vmtrace_ev_file::name_len",
    ][::core::mem::offset_of!(vmtrace_ev_file, name_len) - 32usize];
    [
        "Offset of field: vmtrace_ev_file::pad",
    ][::core::mem::offset_of!(vmtrace_ev_file, pad) - 36usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ev_io {
    pub dev: __u64,
    pub ino: __u64,
    pub offset: __u64,
    pub bytes: __u64,
    pub generation: __u32,
    pub kind: __u16,
    pub call: __u8,
    pub flags: __u8,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ev_io"][::core::mem::size_of::<vmtrace_ev_io>() - 40usize];
    ["Alignment of vmtrace_ev_io"][::core::mem::align_of::<vmtrace_ev_io>() - 8usize];
    [
        "Offset of field: vmtrace_ev_io::dev",
    ][::core::mem::offset_of!(vmtrace_ev_io, dev) - 0usize];
    [
        "Offset of field: vmtrace_ev_io::ino",
    ][::core::mem::offset_of!(vmtrace_ev_io, ino) - 8usize];
    [
        "Offset of field: vmtrace_ev_io::offset",
    ][::core::mem::offset_of!(vmtrace_ev_io, offset) - 16usize];
    [
        "Offset of field: vmtrace_ev_io::bytes",
    ][::core::mem::offset_of!(vmtrace_ev_io, bytes) - 24usize];
    [
        "Offset of field: vmtrace_ev_io::generation",
    ][::core::mem::offset_of!(vmtrace_ev_io, generation) - 32usize];
    [
        "Offset of field: vmtrace_ev_io::kind",
    ][::core::mem::offset_of!(vmtrace_ev_io, kind) - 36usize];
    [
        "Offset of field: vmtrace_ev_io::call",
    ][::core::mem::offset_of!(vmtrace_ev_io, call) - 38usize];
    [
        "Offset of field: vmtrace_ev_io::flags",
    ][::core::mem::offset_of!(vmtrace_ev_io, flags) - 39usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_config {
    pub size: __u32,
    pub flags: __u32,
    pub out_fd: __s32,
    pub scope: __u32,
    pub pid: __s32,
    pub evms_size: __u32,
    pub nr_buffers: __u32,
    pub buffer_size: __u32,
    pub first_segment: __u32,
    pub policy: __u32,
    pub evms_max: __u32,
    pub classes: __u32,
    pub vtime_skip: __u32,
    pub windows: __u32,
    pub window_time: __u64,
    pub window_refs: __u64,
    pub warmup: __u64,
    pub skip: __u64,
    pub stall_ms: __u32,
    pub batch: __u32,
    pub sets: __u32,
    pub mode: __u16,
    pub flush_ms: __u16,
    pub output: [::core::ffi::c_char; 256usize],
    pub filter: __u64,
    pub cgroup_fd: __s32,
    pub comm: [::core::ffi::c_char; 60usize],
    pub interval: __u64,
    pub sampling: vmtrace_sampling,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_config"][::core::mem::size_of::<vmtrace_config>() - 480usize];
    ["Alignment of vmtrace_config"][::core::mem::align_of::<vmtrace_config>() - 8usize];
    [
        "Offset of field: vmtrace_config::size",
    ][::core::mem::offset_of!(vmtrace_config, size) - 0usize];
    [
        "Offset of field: vmtrace_config::flags",
    ][::core::mem::offset_of!(vmtrace_config, flags) - 4usize];
    [
        "Offset of field: vmtrace_config::out_fd",
    ][::core::mem::offset_of!(vmtrace_config, out_fd) - 8usize];
    [
        "Offset of field: vmtrace_config::scope",
    ][::core::mem::offset_of!(vmtrace_config, scope) - 12usize];
    [
        "Offset of field: vmtrace_config::pid",
    ][::core::mem::offset_of!(vmtrace_config, pid) - 16usize];
    [
        "Offset of field: vmtrace_config::evms_size",
    ][::core::mem::offset_of!(vmtrace_config, evms_size) - 20usize];
    [
        "Offset of field: vmtrace_config::nr_buffers",
    ][::core::mem::offset_of!(vmtrace_config, nr_buffers) - 24usize];
    [
        "Offset of field: vmtrace_config::buffer_size",
    ][::core::mem::offset_of!(vmtrace_config, buffer_size) - 28usize];
    [
        "Offset of field: vmtrace_config::first_segment",
    ][::core::mem::offset_of!(vmtrace_config, first_segment) - 32usize];
    [
        "Offset of field: vmtrace_config::policy",
    ][::core::mem::offset_of!(vmtrace_config, policy) - 36usize];
    [
        "Offset of field: vmtrace_config::evms_max",
    ][::core::mem::offset_of!(vmtrace_config, evms_max) - 40usize];
    [
        "Offset of field: vmtrace_config::classes",
    ][::core::mem::offset_of!(vmtrace_config, classes) - 44usize];
    [
        "Offset of field: vmtrace_config::vtime_skip",
    ][::core::mem::offset_of!(vmtrace_config, vtime_skip) - 48usize];
    [
        "Offset of field: vmtrace_config::windows",
    ][::core::mem::offset_of!(vmtrace_config, windows) - 52usize];
    [
        "Offset of field: vmtrace_config::window_time",
    ][::core::mem::offset_of!(vmtrace_config, window_time) - 56usize];
    [
        "Offset of field: vmtrace_config::window_refs",
    ][::core::mem::offset_of!(vmtrace_config, window_refs) - 64usize];
    [
        "Offset of field: vmtrace_config::warmup",
    ][::core::mem::offset_of!(vmtrace_config, warmup) - 72usize];
    [
        "Offset of field: vmtrace_config::skip",
    ][::core::mem::offset_of!(vmtrace_config, skip) - 80usize];
    [
        "Offset of field: vmtrace_config::stall_ms",
    ][::core::mem::offset_of!(vmtrace_config, stall_ms) - 88usize];
    [
        "Offset of field: vmtrace_config::batch",
    ][::core::mem::offset_of!(vmtrace_config, batch) - 92usize];
    [
        "Offset of field: vmtrace_config::sets",
    ][::core::mem::offset_of!(vmtrace_config, sets) - 96usize];
    [
        "Offset of field: vmtrace_config::mode",
    ][::core::mem::offset_of!(vmtrace_config, mode) - 100usize];
    [
        "Offset of field: vmtrace_config::flush_ms",
    ][::core::mem::offset_of!(vmtrace_config, flush_ms) - 102usize];
    [
        "Offset of field: vmtrace_config::output",
    ][::core::mem::offset_of!(vmtrace_config, output) - 104usize];
    [
        "Offset of field: vmtrace_config::filter",
    ][::core::mem::offset_of!(vmtrace_config, filter) - 360usize];
    [
        "Offset of field: vmtrace_config::cgroup_fd",
    ][::core::mem::offset_of!(vmtrace_config, cgroup_fd) - 368usize];
    [
        "Offset of field: vmtrace_config::comm",
    ][::core::mem::offset_of!(vmtrace_config, comm) - 372usize];
    [
        "Offset of field: vmtrace_config::interval",
    ][::core::mem::offset_of!(vmtrace_config, interval) - 432usize];
    [
        "Offset of field: vmtrace_config::sampling",
    ][::core::mem::offset_of!(vmtrace_config, sampling) - 440usize];
};
impl Default for vmtrace_config {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_filter_test {
    pub field: __u16,
    pub op: __u16,
    pub yes: __u16,
    pub no: __u16,
    pub low: __u64,
    pub high: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of vmtrace_filter_test",
    ][::core::mem::size_of::<vmtrace_filter_test>() - 24usize];
    [
        "Alignment of vmtrace_filter_test",
    ][::core::mem::align_of::<vmtrace_filter_test>() - 8usize];
    [
        "Offset of field: vmtrace_filter_test::field",
    ][::core::mem::offset_of!(vmtrace_filter_test, field) - 0usize];
    [
        "Offset of field: vmtrace_filter_test::op",
    ][::core::mem::offset_of!(vmtrace_filter_test, op) - 2usize];
    [
        "Offset of field: vmtrace_filter_test::yes",
    ][::core::mem::offset_of!(vmtrace_filter_test, yes) - 4usize];
    [
        "Offset of field: vmtrace_filter_test::no",
    ][::core::mem::offset_of!(vmtrace_filter_test, no) - 6usize];
    [
        "Offset of field: vmtrace_filter_test::low",
    ][::core::mem::offset_of!(vmtrace_filter_test, low) - 8usize];
    [
        "Offset of field: vmtrace_filter_test::high",
    ][::core::mem::offset_of!(vmtrace_filter_test, high) - 16usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_filter {
    pub size: __u32,
    pub nr_tests: __u32,
    pub tests: __u64,
    pub texts: __u64,
    pub texts_len: __u32,
    pub expr_len: __u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_filter"][::core::mem::size_of::<vmtrace_filter>() - 32usize];
    ["Alignment of vmtrace_filter"][::core::mem::align_of::<vmtrace_filter>() - 8usize];
    [
        "Offset of field: vmtrace_filter::size",
    ][::core::mem::offset_of!(vmtrace_filter, size) - 0usize];
    [
        "Offset of field: vmtrace_filter::nr_tests",
    ][::core::mem::offset_of!(vmtrace_filter, nr_tests) - 4usize];
    [
        "Offset of field: vmtrace_filter::tests",
    ][::core::mem::offset_of!(vmtrace_filter, tests) - 8usize];
    [
        "Offset of field: vmtrace_filter::texts",
    ][::core::mem::offset_of!(vmtrace_filter, texts) - 16usize];
    [
        "Offset of field: vmtrace_filter::texts_len",
    ][::core::mem::offset_of!(vmtrace_filter, texts_len) - 24usize];
    [
        "Offset of field: vmtrace_filter::expr_len",
    ][::core::mem::offset_of!(vmtrace_filter, expr_len) - 28usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_status {
    pub size: __u32,
    pub state: __u32,
    pub error: __s32,
    pub scope: __u32,
    pub pid: __s32,
    pub evms_size: __u32,
    pub evms_min: __u32,
    pub nr_cpus: __u32,
    pub uuid: [__u8; 16usize],
    pub start_time: __u64,
    pub stop_time: __u64,
    pub last_seq: __u64,
    pub admissions: __u64,
    pub refs: __u64,
    pub events: __u64,
    pub aborted: __u64,
    pub members: __u64,
    pub members_max: __u64,
    pub funny: __u64,
    pub stuck: __u64,
    pub audits: __u64,
    pub dangling: __u64,
    pub miscounted: __u64,
    pub uncovered: __u64,
    pub lost_full: __u64,
    pub lost_atomic: __u64,
    pub lost_io: __u64,
    pub waits: __u64,
    pub packets: __u64,
    pub bytes: __u64,
    pub mms: __u64,
    pub renewed: __u64,
    pub chances: __u64,
    pub flags: __u32,
    pub first_segment: __u32,
    pub policy: __u16,
    pub batch: __u16,
    pub evms_max: __u32,
    pub evms_peak: __u32,
    pub classes: __u32,
    pub windows: __u32,
    pub windows_begun: __u32,
    pub windows_ended: __u32,
    pub unaudited: __u32,
    pub output: [::core::ffi::c_char; 256usize],
    pub sets: __u32,
    pub mode: __u32,
    pub sets_made: __u64,
    pub sets_max: __u64,
    pub sets_shared: __u64,
    pub stored: __u64,
    pub piece: __u32,
    pub pad: __u32,
    pub piece_bytes: __u64,
    pub left_out: __u64,
    pub scope_name: [::core::ffi::c_char; 256usize],
    pub interval: __u64,
    pub ran: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_status"][::core::mem::size_of::<vmtrace_status>() - 872usize];
    ["Alignment of vmtrace_status"][::core::mem::align_of::<vmtrace_status>() - 8usize];
    [
        "Offset of field: vmtrace_status::size",
    ][::core::mem::offset_of!(vmtrace_status, size) - 0usize];
    [
        "Offset of field: vmtrace_status::state",
    ][::core::mem::offset_of!(vmtrace_status, state) - 4usize];
    [
        "Offset of field: vmtrace_status::error",
    ][::core::mem::offset_of!(vmtrace_status, error) - 8usize];
    [
        "Offset of field: vmtrace_status::scope",
    ][::core::mem::offset_of!(vmtrace_status, scope) - 12usize];
    [
        "Offset of field: vmtrace_status::pid",
    ][::core::mem::offset_of!(vmtrace_status, pid) - 16usize];
    [
        "Offset of field: vmtrace_status::evms_size",
    ][::core::mem::offset_of!(vmtrace_status, evms_size) - 20usize];
    [
        "Offset of field: vmtrace_status::evms_min",
    ][::core::mem::offset_of!(vmtrace_status, evms_min) - 24usize];
    [
        "Offset of field: vmtrace_status::nr_cpus",
    ][::core::mem::offset_of!(vmtrace_status, nr_cpus) - 28usize];
    [
        "Offset of field: vmtrace_status::uuid",
    ][::core::mem::offset_of!(vmtrace_status, uuid) - 32usize];
    [
        "Offset of field: vmtrace_status::start_time",
    ][::core::mem::offset_of!(vmtrace_status, start_time) - 48usize];
    [
        "Offset of field: vmtrace_status::stop_time",
    ][::core::mem::offset_of!(vmtrace_status, stop_time) - 56usize];
    [
        "Offset of field: vmtrace_status::last_seq",
    ][::core::mem::offset_of!(vmtrace_status, last_seq) - 64usize];
    [
        "Offset of field: vmtrace_status::admissions",
    ][::core::mem::offset_of!(vmtrace_status, admissions) - 72usize];
    [
        "Offset of field: vmtrace_status::refs",
    ][::core::mem::offset_of!(vmtrace_status, refs) - 80usize];
    [
        "Offset of field: vmtrace_status::events",
    ][::core::mem::offset_of!(vmtrace_status, events) - 88usize];
    [
        "Offset of field: vmtrace_status::aborted",
    ][::core::mem::offset_of!(vmtrace_status, aborted) - 96usize];
    [
        "Offset of field: vmtrace_status::members",
    ][::core::mem::offset_of!(vmtrace_status, members) - 104usize];
    [
        "Offset of field: vmtrace_status::members_max",
    ][::core::mem::offset_of!(vmtrace_status, members_max) - 112usize];
    [
        "Offset of field: vmtrace_status::funny",
    ][::core::mem::offset_of!(vmtrace_status, funny) - 120usize];
    [
        "Offset of field: vmtrace_status::stuck",
    ][::core::mem::offset_of!(vmtrace_status, stuck) - 128usize];
    [
        "Offset of field: vmtrace_status::audits",
    ][::core::mem::offset_of!(vmtrace_status, audits) - 136usize];
    [
        "Offset of field: vmtrace_status::dangling",
    ][::core::mem::offset_of!(vmtrace_status, dangling) - 144usize];
    [
        "Offset of field: vmtrace_status::miscounted",
    ][::core::mem::offset_of!(vmtrace_status, miscounted) - 152usize];
    [
        "Offset of field: vmtrace_status::uncovered",
    ][::core::mem::offset_of!(vmtrace_status, uncovered) - 160usize];
    [
        "Offset of field: vmtrace_status::lost_full",
    ][::core::mem::offset_of!(vmtrace_status, lost_full) - 168usize];
    [
        "Offset of field: vmtrace_status::lost_atomic",
    ][::core::mem::offset_of!(vmtrace_status, lost_atomic) - 176usize];
    [
        "Offset of field: vmtrace_status::lost_io",
    ][::core::mem::offset_of!(vmtrace_status, lost_io) - 184usize];
    [
        "Offset of field: vmtrace_status::waits",
    ][::core::mem::offset_of!(vmtrace_status, waits) - 192usize];
    [
        "Offset of field: vmtrace_status::packets",
    ][::core::mem::offset_of!(vmtrace_status, packets) - 200usize];
    [
        "Offset of field: vmtrace_status::bytes",
    ][::core::mem::offset_of!(vmtrace_status, bytes) - 208usize];
    [
        "Offset of field: vmtrace_status::mms",
    ][::core::mem::offset_of!(vmtrace_status, mms) - 216usize];
    [
        "Offset of field: vmtrace_status::renewed",
    ][::core::mem::offset_of!(vmtrace_status, renewed) - 224usize];
    [
        "Offset of field: vmtrace_status::chances",
    ][::core::mem::offset_of!(vmtrace_status, chances) - 232usize];
    [
        "Offset of field: vmtrace_status::flags",
    ][::core::mem::offset_of!(vmtrace_status, flags) - 240usize];
    [
        "Offset of field: vmtrace_status::first_segment",
    ][::core::mem::offset_of!(vmtrace_status, first_segment) - 244usize];
    [
        "Offset of field: vmtrace_status::policy",
    ][::core::mem::offset_of!(vmtrace_status, policy) - 248usize];
    [
        "Offset of field: vmtrace_status::batch",
    ][::core::mem::offset_of!(vmtrace_status, batch) - 250usize];
    [
        "Offset of field: vmtrace_status::evms_max",
    ][::core::mem::offset_of!(vmtrace_status, evms_max) - 252usize];
    [
        "Offset of field: vmtrace_status::evms_peak",
    ][::core::mem::offset_of!(vmtrace_status, evms_peak) - 256usize];
    [
        "Offset of field: vmtrace_status::classes",
    ][::core::mem::offset_of!(vmtrace_status, classes) - 260usize];
    [
        "Offset of field: vmtrace_status::windows",
    ][::core::mem::offset_of!(vmtrace_status, windows) - 264usize];
    [
        "Offset of field: vmtrace_status::windows_begun",
    ][::core::mem::offset_of!(vmtrace_status, windows_begun) - 268usize];
    [
        "Offset of field: vmtrace_status::windows_ended",
    ][::core::mem::offset_of!(vmtrace_status, windows_ended) - 272usize];
    [
        "Offset of field: vmtrace_status::unaudited",
    ][::core::mem::offset_of!(vmtrace_status, unaudited) - 276usize];
    [
        "Offset of field: vmtrace_status::output",
    ][::core::mem::offset_of!(vmtrace_status, output) - 280usize];
    [
        "Offset of field: vmtrace_status::sets",
    ][::core::mem::offset_of!(vmtrace_status, sets) - 536usize];
    [
        "Offset of field: vmtrace_status::mode",
    ][::core::mem::offset_of!(vmtrace_status, mode) - 540usize];
    [
        "Offset of field: vmtrace_status::sets_made",
    ][::core::mem::offset_of!(vmtrace_status, sets_made) - 544usize];
    [
        "Offset of field: vmtrace_status::sets_max",
    ][::core::mem::offset_of!(vmtrace_status, sets_max) - 552usize];
    [
        "Offset of field: vmtrace_status::sets_shared",
    ][::core::mem::offset_of!(vmtrace_status, sets_shared) - 560usize];
    [
        "Offset of field: vmtrace_status::stored",
    ][::core::mem::offset_of!(vmtrace_status, stored) - 568usize];
    [
        "Offset of field: vmtrace_status::piece",
    ][::core::mem::offset_of!(vmtrace_status, piece) - 576usize];
    [
        "Offset of field: vmtrace_status::pad",
    ][::core::mem::offset_of!(vmtrace_status, pad) - 580usize];
    [
        "Offset of field: vmtrace_status::piece_bytes",
    ][::core::mem::offset_of!(vmtrace_status, piece_bytes) - 584usize];
    [
        "Offset of field: vmtrace_status::left_out",
    ][::core::mem::offset_of!(vmtrace_status, left_out) - 592usize];
    [
        "Offset of field: vmtrace_status::scope_name",
    ][::core::mem::offset_of!(vmtrace_status, scope_name) - 600usize];
    [
        "Offset of field: vmtrace_status::interval",
    ][::core::mem::offset_of!(vmtrace_status, interval) - 856usize];
    [
        "Offset of field: vmtrace_status::ran",
    ][::core::mem::offset_of!(vmtrace_status, ran) - 864usize];
};
impl Default for vmtrace_status {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_rotate {
    pub size: __u32,
    pub out_fd: __s32,
    pub output: [::core::ffi::c_char; 256usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_rotate"][::core::mem::size_of::<vmtrace_rotate>() - 264usize];
    ["Alignment of vmtrace_rotate"][::core::mem::align_of::<vmtrace_rotate>() - 4usize];
    [
        "Offset of field: vmtrace_rotate::size",
    ][::core::mem::offset_of!(vmtrace_rotate, size) - 0usize];
    [
        "Offset of field: vmtrace_rotate::out_fd",
    ][::core::mem::offset_of!(vmtrace_rotate, out_fd) - 4usize];
    [
        "Offset of field: vmtrace_rotate::output",
    ][::core::mem::offset_of!(vmtrace_rotate, output) - 8usize];
};
impl Default for vmtrace_rotate {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_count {
    pub reads: __u64,
    pub writes: __u64,
    pub fetches: __u64,
    pub kernel: __u64,
    pub dev: __u64,
    pub ino: __u64,
    pub mm: __u32,
    pub pid: __u32,
    pub kind: __u32,
    pub pad: __u32,
    pub comm: [::core::ffi::c_char; 16usize],
    pub name: [::core::ffi::c_char; 48usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_count"][::core::mem::size_of::<vmtrace_count>() - 128usize];
    ["Alignment of vmtrace_count"][::core::mem::align_of::<vmtrace_count>() - 8usize];
    [
        "Offset of field: vmtrace_count::reads",
    ][::core::mem::offset_of!(vmtrace_count, reads) - 0usize];
    [
        "Offset of field: vmtrace_count::writes",
    ][::core::mem::offset_of!(vmtrace_count, writes) - 8usize];
    [
        "Offset of field: vmtrace_count::fetches",
    ][::core::mem::offset_of!(vmtrace_count, fetches) - 16usize];
    [
        "Offset of field: vmtrace_count::kernel",
    ][::core::mem::offset_of!(vmtrace_count, kernel) - 24usize];
    [
        "Offset of field: vmtrace_count::dev",
    ][::core::mem::offset_of!(vmtrace_count, dev) - 32usize];
    [
        "Offset of field: vmtrace_count::ino",
    ][::core::mem::offset_of!(vmtrace_count, ino) - 40usize];
    [
        "Offset of field: vmtrace_count::mm",
    ][::core::mem::offset_of!(vmtrace_count, mm) - 48usize];
    [
        "Offset of field: vmtrace_count::pid",
    ][::core::mem::offset_of!(vmtrace_count, pid) - 52usize];
    [
        "Offset of field: vmtrace_count::kind",
    ][::core::mem::offset_of!(vmtrace_count, kind) - 56usize];
    [
        "Offset of field: vmtrace_count::pad",
    ][::core::mem::offset_of!(vmtrace_count, pad) - 60usize];
    [
        "Offset of field: vmtrace_count::comm",
    ][::core::mem::offset_of!(vmtrace_count, comm) - 64usize];
    [
        "Offset of field: vmtrace_count::name",
    ][::core::mem::offset_of!(vmtrace_count, name) - 80usize];
};
impl Default for vmtrace_count {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_counts {
    pub size: __u32,
    pub nr: __u32,
    pub counts: __u64,
    pub time: __u64,
    pub references: __u64,
    pub elsewhere: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_counts"][::core::mem::size_of::<vmtrace_counts>() - 40usize];
    ["Alignment of vmtrace_counts"][::core::mem::align_of::<vmtrace_counts>() - 8usize];
    [
        "Offset of field: vmtrace_counts::size",
    ][::core::mem::offset_of!(vmtrace_counts, size) - 0usize];
    [
        "Offset of field: vmtrace_counts::nr",
    ][::core::mem::offset_of!(vmtrace_counts, nr) - 4usize];
    [
        "Offset of field: vmtrace_counts::counts",
    ][::core::mem::offset_of!(vmtrace_counts, counts) - 8usize];
    [
        "Offset of field: vmtrace_counts::time",
    ][::core::mem::offset_of!(vmtrace_counts, time) - 16usize];
    [
        "Offset of field: vmtrace_counts::references",
    ][::core::mem::offset_of!(vmtrace_counts, references) - 24usize];
    [
        "Offset of field: vmtrace_counts::elsewhere",
    ][::core::mem::offset_of!(vmtrace_counts, elsewhere) - 32usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_ring {
    pub kind: __u32,
    pub cpu: __u32,
    pub buffers: __u32,
    pub buffer_size: __u32,
    pub free: __u32,
    pub full: __u32,
    pub waiting: __u64,
    pub lost_full: __u64,
    pub lost_atomic: __u64,
    pub admissions: __u64,
    pub renewed: __u64,
    pub chances: __u64,
    pub left_out: __u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_ring"][::core::mem::size_of::<vmtrace_ring>() - 80usize];
    ["Alignment of vmtrace_ring"][::core::mem::align_of::<vmtrace_ring>() - 8usize];
    [
        "Offset of field: vmtrace_ring::kind",
    ][::core::mem::offset_of!(vmtrace_ring, kind) - 0usize];
    [
        "Offset of field: vmtrace_ring::cpu",
    ][::core::mem::offset_of!(vmtrace_ring, cpu) - 4usize];
    [
        "Offset of field: vmtrace_ring::buffers",
    ][::core::mem::offset_of!(vmtrace_ring, buffers) - 8usize];
    [
        "Offset of field: vmtrace_ring::buffer_size",
    ][::core::mem::offset_of!(vmtrace_ring, buffer_size) - 12usize];
    [
        "Offset of field: vmtrace_ring::free",
    ][::core::mem::offset_of!(vmtrace_ring, free) - 16usize];
    [
        "Offset of field: vmtrace_ring::full",
    ][::core::mem::offset_of!(vmtrace_ring, full) - 20usize];
    [
        "Offset of field: vmtrace_ring::waiting",
    ][::core::mem::offset_of!(vmtrace_ring, waiting) - 24usize];
    [
        "Offset of field: vmtrace_ring::lost_full",
    ][::core::mem::offset_of!(vmtrace_ring, lost_full) - 32usize];
    [
        "Offset of field: vmtrace_ring::lost_atomic",
    ][::core::mem::offset_of!(vmtrace_ring, lost_atomic) - 40usize];
    [
        "Offset of field: vmtrace_ring::admissions",
    ][::core::mem::offset_of!(vmtrace_ring, admissions) - 48usize];
    [
        "Offset of field: vmtrace_ring::renewed",
    ][::core::mem::offset_of!(vmtrace_ring, renewed) - 56usize];
    [
        "Offset of field: vmtrace_ring::chances",
    ][::core::mem::offset_of!(vmtrace_ring, chances) - 64usize];
    [
        "Offset of field: vmtrace_ring::left_out",
    ][::core::mem::offset_of!(vmtrace_ring, left_out) - 72usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone, PartialEq, zerocopy::FromBytes)]
pub struct vmtrace_rings {
    pub size: __u32,
    pub nr: __u32,
    pub rings: __u64,
    pub time: __u64,
    pub seq: __u64,
    pub uuid: [__u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of vmtrace_rings"][::core::mem::size_of::<vmtrace_rings>() - 48usize];
    ["Alignment of vmtrace_rings"][::core::mem::align_of::<vmtrace_rings>() - 8usize];
    [
        "Offset of field: vmtrace_rings::size",
    ][::core::mem::offset_of!(vmtrace_rings, size) - 0usize];
    [
        "Offset of field: vmtrace_rings::nr",
    ][::core::mem::offset_of!(vmtrace_rings, nr) - 4usize];
    [
        "Offset of field: vmtrace_rings::rings",
    ][::core::mem::offset_of!(vmtrace_rings, rings) - 8usize];
    [
        "Offset of field: vmtrace_rings::time",
    ][::core::mem::offset_of!(vmtrace_rings, time) - 16usize];
    [
        "Offset of field: vmtrace_rings::seq",
    ][::core::mem::offset_of!(vmtrace_rings, seq) - 24usize];
    [
        "Offset of field: vmtrace_rings::uuid",
    ][::core::mem::offset_of!(vmtrace_rings, uuid) - 32usize];
};

/// Each event: its number, its name, and its class, 0 if it is always recorded.
pub const VMTRACE_EVENTS: [(u32, &str, u32); 38] = [
    (VMTRACE_EV_MAP, "map", 0),
    (VMTRACE_EV_UNMAP, "unmap", 0),
    (VMTRACE_EV_MOVE, "move", 0),
    (VMTRACE_EV_PROTECT, "protect", 0),
    (VMTRACE_EV_ADVISE, "advise", 0),
    (VMTRACE_EV_COW, "cow", 0),
    (VMTRACE_EV_MM_DUP, "mm_dup", 0),
    (VMTRACE_EV_MM_END, "mm_end", 0),
    (VMTRACE_EV_FORK, "fork", 0),
    (VMTRACE_EV_EXEC, "exec", 0),
    (VMTRACE_EV_EXIT, "exit", 0),
    (VMTRACE_EV_TASK, "task", 0),
    (VMTRACE_EV_SWITCH, "switch", VMTRACE_CLASS_SWITCH),
    (VMTRACE_EV_CGROUP, "cgroup", 0),
    (VMTRACE_EV_SHMAT, "shmat", VMTRACE_CLASS_SHM),
    (VMTRACE_EV_SHMDT, "shmdt", VMTRACE_CLASS_SHM),
    (VMTRACE_EV_SHM_DESTROY, "shm_destroy", VMTRACE_CLASS_SHM),
    (VMTRACE_EV_OPEN, "open", VMTRACE_CLASS_FILE),
    (VMTRACE_EV_CLOSE, "close", VMTRACE_CLASS_FILE),
    (VMTRACE_EV_READ, "read", VMTRACE_CLASS_IO),
    (VMTRACE_EV_WRITE, "write", VMTRACE_CLASS_IO),
    (VMTRACE_EV_TRUNCATE, "truncate", 0),
    (VMTRACE_EV_PUNCH, "punch", 0),
    (VMTRACE_EV_DELETE, "delete", 0),
    (VMTRACE_EV_SWAP_IN, "swap_in", VMTRACE_CLASS_SWAP),
    (VMTRACE_EV_SWAP_OUT, "swap_out", VMTRACE_CLASS_SWAP),
    (VMTRACE_EV_KSM, "ksm", VMTRACE_CLASS_FRAME),
    (VMTRACE_EV_MIGRATE, "migrate", VMTRACE_CLASS_FRAME),
    (VMTRACE_EV_GUP, "gup", VMTRACE_CLASS_GUP),
    (VMTRACE_EV_RESIZE, "resize", 0),
    (VMTRACE_EV_SET, "set", 0),
    (VMTRACE_EV_FILTER, "filter", 0),
    (VMTRACE_EV_REGION, "region", 0),
    (VMTRACE_EV_SNAP_BEGIN, "snap_begin", 0),
    (VMTRACE_EV_SNAP_END, "snap_end", 0),
    (VMTRACE_EV_REFS_BEGIN, "refs_begin", 0),
    (VMTRACE_EV_CHECKPOINT, "checkpoint", 0),
    (VMTRACE_EV_CHECKPOINT_END, "checkpoint_end", 0),
];
