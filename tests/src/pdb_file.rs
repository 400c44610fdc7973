//! PDB files written by hand, according to LLVM's "The PDB File Format".

const PAGE: usize = 4096;

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
