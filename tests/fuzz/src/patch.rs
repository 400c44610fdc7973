//! Overwrites arbitrary bytes of real files. This damages inner structures, which arbitrary bytes
//! as a whole file hardly reach.

/// `base` with `data` as a list of patches: a place (3 bytes, modulo the file's length), a length
/// (1 byte: its low 3 bits and 1), bytes. With the length's highest bit set the place is relative
/// to the patch before, modulo 256, so that neighbouring bytes are changed together.
pub fn patched(base: &[u8], data: &[u8]) -> Vec<u8> {
    let mut file = base.to_vec();
    let mut rest = data;
    let mut last = 0;
    while let Some(([low, middle, high, len], after)) = rest.split_first_chunk() {
        let place = u32::from_le_bytes([*low, *middle, *high, 0]) as usize;
        let place = if len & 0x80 != 0 { last + place % 256 } else { place } % file.len();
        let bytes = &after[..after.len().min(usize::from(len & 7) + 1).min(file.len() - place)];
        file[place..place + bytes.len()].copy_from_slice(bytes);
        (last, rest) = (place, &after[bytes.len()..]);
    }
    file
}
