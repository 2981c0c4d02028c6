//! The use of a mapped object by a program: library, heap, stack, file and so on.

use serde::Serialize;

use crate::pipeline::World;
use crate::space::Object;
use crate::trace::MapKind;

/// Kinds of mapped objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The file that was executed.
    Program,
    /// A shared object.
    Library,
    /// Memory from brk().
    Heap,
    /// A stack that the kernel grows.
    Stack,
    /// Anonymous memory from mmap(): large allocations, arenas, stacks of threads.
    Anonymous,
    /// Any other file.
    File,
    /// Memory that processes share and that is in no visible file system.
    SharedMemory,
    /// Mappings of the kernel, such as the vdso, and of devices.
    Kernel,
    /// No mapping.
    Unmapped,
}

impl Class {
    /// All classes, in the order in which they are shown.
    pub const ALL: [Class; 9] = [
        Class::Program,
        Class::Library,
        Class::File,
        Class::SharedMemory,
        Class::Heap,
        Class::Anonymous,
        Class::Stack,
        Class::Kernel,
        Class::Unmapped,
    ];

    /// The name in words.
    pub fn name(self) -> &'static str {
        match self {
            Class::Program => "program",
            Class::Library => "library",
            Class::Heap => "heap",
            Class::Stack => "stack",
            Class::Anonymous => "anonymous",
            Class::File => "file",
            Class::SharedMemory => "shared memory",
            Class::Kernel => "kernel, device",
            Class::Unmapped => "not mapped",
        }
    }

    /// How a page gets its content at the first reference.
    pub fn first_reference(self) -> &'static str {
        match self {
            Class::Program | Class::Library | Class::File => "read from a file",
            Class::Heap | Class::Stack | Class::Anonymous | Class::SharedMemory => {
                "filled with zeros"
            }
            Class::Kernel | Class::Unmapped => "neither",
        }
    }

    /// The class of an object.
    pub fn of(object: &Object, world: &World) -> Class {
        let name = &*object.name;
        match object.kind {
            MapKind::Anon => match name {
                "[heap]" => Class::Heap,
                "[stack]" => Class::Stack,
                _ => Class::Anonymous,
            },
            MapKind::File if is_shared_object(name) => Class::Library,
            MapKind::File => {
                let executed = |p: &crate::process::Process| p.exe == name;
                match world.tasks.processes().iter().any(executed) {
                    true => Class::Program,
                    false => Class::File,
                }
            }
            MapKind::Shmem | MapKind::Hugetlb => Class::SharedMemory,
            MapKind::Device | MapKind::Special => Class::Kernel,
            MapKind::Unknown => Class::Unmapped,
        }
    }
}

/// Whether a path is that of a shared object: `libc.so.6`, `_sqlite3.cpython-311.so`.
fn is_shared_object(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let mut parts = name.split('.').skip(1).skip_while(|part| *part != "so");
    parts.next().is_some() && parts.all(|part| part.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::is_shared_object;

    #[test]
    fn shared_objects_have_their_names() {
        for name in [
            "/usr/lib/libc.so.6",
            "/lib/ld-linux-x86-64.so.2",
            "x.cpython-311.so",
            "a.so.1.2.3",
        ] {
            assert!(is_shared_object(name), "{name}");
        }
        for name in ["/etc/ld.so.cache", "/usr/bin/so", "/tmp/a.sock", "so"] {
            assert!(!is_shared_object(name), "{name}");
        }
    }
}
