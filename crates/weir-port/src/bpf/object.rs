//! Programs and maps that the kernel holds for some process, found by their numbers.
//!
//! Source: `include/uapi/linux/bpf.h`, `union bpf_attr`, `struct bpf_prog_info`, `struct bpf_map_info`; needs CAP_SYS_ADMIN.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys;

const BPF_PROG_GET_FD_BY_ID: u32 = 13;
const BPF_MAP_GET_FD_BY_ID: u32 = 14;
const BPF_OBJ_GET_INFO_BY_FD: u32 = 15;

/// The kind of object that a number names.
#[derive(Clone, Copy, Debug)]
pub enum ObjectKind {
    /// A program.
    Program,
    /// A map.
    Map,
}

/// A descriptor of the program or map with number `id`.
pub fn open(kind: ObjectKind, id: u32) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        id: u32,
        next_id: u32,
        open_flags: u32,
    }
    let command = match kind {
        ObjectKind::Program => BPF_PROG_GET_FD_BY_ID,
        ObjectKind::Map => BPF_MAP_GET_FD_BY_ID,
    };
    let mut attributes = Attributes { id, next_id: 0, open_flags: 0 };
    // SAFETY: `attributes` holds no address.
    unsafe { sys::bpf(command, &mut attributes) }.and_then(sys::check_fd)
}

/// The numbers of the maps that program `id` uses.
pub fn maps_of_program(id: u32) -> io::Result<Vec<u32>> {
    /// The most maps that the kernel allows a program (`MAX_USED_MAPS`).
    const MAPS_MAX: usize = 64;
    let mut maps = [0u32; MAPS_MAX];
    let mut info = ProgramInfo {
        map_ids_count: maps.len() as u32,
        map_ids: maps.as_mut_ptr().addr() as u64,
        ..Default::default()
    };
    let program = open(ObjectKind::Program, id)?;
    // SAFETY: the one address in `info` is of a live array of as many numbers as the count says.
    unsafe { read_info(&program, &mut info)? };
    Ok(maps[..maps.len().min(info.map_ids_count as usize)].to_vec())
}

/// The number of a loaded program.
pub fn id_of_program(program: &impl AsRawFd) -> io::Result<u32> {
    let mut info = ProgramInfo::default();
    // SAFETY: `info` holds no address, so the kernel writes nothing beyond it.
    unsafe { read_info(program, &mut info)? };
    Ok(info.id)
}

/// The number of bytes of each value of a map.
pub fn value_bytes(map: &impl AsRawFd) -> io::Result<u32> {
    let mut info = MapInfo::default();
    // SAFETY: `info` holds no address.
    unsafe { read_info(map, &mut info)? };
    Ok(info.value_bytes)
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct ProgramInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_bytes: u32,
    translated_bytes: u32,
    jited: u64,
    translated: u64,
    load_time: u64,
    created_by_uid: u32,
    map_ids_count: u32,
    map_ids: u64,
}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

/// Has the kernel fill in its record of a program or a map.
///
/// # Safety
/// Any bytes are a valid `T`, and the addresses in `info` are of live memory of the lengths that stand beside them.
unsafe fn read_info<T>(object: &impl AsRawFd, info: &mut T) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        fd: u32,
        info_bytes: u32,
        info: u64,
    }
    let mut attributes = Attributes {
        fd: object.as_raw_fd() as u32,
        info_bytes: size_of::<T>() as u32,
        info: std::ptr::from_mut(info).addr() as u64,
    };
    // SAFETY: the address is of `info`, with its size; the caller answers for the addresses in `info`.
    unsafe { sys::bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes) }.map(drop)
}
