//! PDB files written by hand, according to LLVM's "The PDB File Format".

const PAGE: usize = 4096;
/// The number of a stream that a file does not have.
pub const NO_STREAM: u16 = u16::MAX;

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Appends a record: length, kind, body, NUL-terminated name, padding.
pub fn record(out: &mut Vec<u8>, kind: u16, body: &[u8], name: &str) {
    let mut bytes = [&kind.to_le_bytes()[..], body, name.as_bytes(), b"\0"].concat();
    bytes.resize((bytes.len() + 2).next_multiple_of(4) - 2, 0);
    out.extend((bytes.len() as u16).to_le_bytes());
    out.extend(bytes);
}

/// An MSF file: header, two free-page maps, the streams, the directory, the list of its pages.
pub fn container(streams: &[Vec<u8>]) -> Vec<u8> {
    let mut pages: Vec<u8> = vec![0; 3 * PAGE];
    let mut append = |bytes: &[u8]| -> Vec<u32> {
        let first = pages.len() / PAGE;
        pages.extend(bytes);
        pages.resize(pages.len().next_multiple_of(PAGE), 0);
        (first..pages.len() / PAGE).map(|page| page as u32).collect()
    };
    let mut directory = words(&[streams.len() as u32]);
    directory.extend(streams.iter().flat_map(|stream| (stream.len() as u32).to_le_bytes()));
    for stream in streams {
        directory.extend(words(&append(stream)));
    }
    let list = words(&append(&directory));
    let list = append(&list)[0];
    pages[..32].copy_from_slice(b"Microsoft C/C++ MSF 7.00\r\n\x1aDS\0\0\0");
    let count = (pages.len() / PAGE) as u32;
    pages[32..56].copy_from_slice(&words(&[PAGE as u32, 1, count, directory.len() as u32, 0, list]));
    pages
}

/// The stream of debug information (DBI) of an x64 image: the records of its modules, its section
/// contributions, and the numbers of its optional debug streams. The publics are in stream 5.
pub fn debug_information(modules: &[u8], contributions: &[u8], streams: [u16; 11]) -> Vec<u8> {
    let streams: Vec<u8> = streams.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut header = [0u8; 64];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &words(&[u32::MAX, 19_990_903, 1]));
    put(12, &NO_STREAM.to_le_bytes());
    put(16, &NO_STREAM.to_le_bytes());
    put(20, &5u16.to_le_bytes());
    put(24, &words(&[modules.len() as u32, contributions.len() as u32]));
    put(48, &words(&[streams.len() as u32]));
    put(58, &0x8664u16.to_le_bytes());
    [&header[..], modules, contributions, &streams].concat()
}
