//! Small symbol files whose records expand to far more than their size. Reading must take time and
//! memory in proportion to the file, and count the excess as damage.
//!
//! No test checks a time: without the limits, each of these takes minutes or more memory than there
//! is. `tests/tests/host/hostile_symbols.rs` gives the same files to the program, under limits.

use stk_symbols::index::SymbolIndex;
use stk_symbols::pdb::PdbFile;
use stk_tests::symbol_bombs::pdb as bombs;

fn index(file: &[u8]) -> SymbolIndex {
    PdbFile::open(file).unwrap().index().unwrap()
}

fn name_at(index: &SymbolIndex, rva: u32) -> Option<String> {
    let hit = index.lookup(rva).unwrap()?;
    hit.frames().next().map(|frame| frame.name.to_owned())
}

#[test]
fn line_blocks_that_overlap_are_damage() {
    let file = bombs::overlapping_line_blocks();
    let index = index(&file);
    assert_eq!(index.header().damaged_parts, 1);
    assert_eq!(name_at(&index, 0x1010).as_deref(), Some("main"));
}

#[test]
fn procedures_that_each_claim_all_lines_expand_only_to_the_limit() {
    let file = bombs::procedures_over_all_lines();
    let index = index(&file);
    assert_eq!(index.header().damaged_parts, 2, "the module and the file");
    assert_eq!(name_at(&index, 0x1010).as_deref(), Some("f"));
    assert!(index.as_bytes().len() < 16 * file.len());
}

#[test]
fn deep_inline_sites_over_many_lines_expand_only_to_the_limit() {
    let file = bombs::deep_inline_sites();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * file.len() + (4 << 20));
}

#[test]
fn modules_that_share_one_stream_are_read_once() {
    let file = bombs::modules_of_one_stream();
    let index = index(&file);
    assert_eq!(index.header().damaged_parts, 19_999);
    assert_eq!(index.ranges().count(), 20_000);
}

#[test]
fn separated_code_is_searched_once_per_module() {
    let file = bombs::separated_code();
    assert_eq!(index(&file).ranges().count(), 60_000);
}

#[test]
fn a_scope_of_nested_lists_gives_no_name() {
    let file = bombs::nested_lists();
    assert_eq!(name_at(&index(&file), 0x1000).as_deref(), Some("<inline function>"));
}

#[test]
fn a_skip_list_that_skips_nothing_is_rebuilt() {
    let file = bombs::useless_skip_list();
    let index = index(&file);
    assert_eq!(name_at(&index, 0x1000 + 59_999 * 8).as_deref(), Some("f59999"));
}

#[test]
fn file_names_that_overlap_are_damage() {
    let file = bombs::overlapping_file_names();
    let index = index(&file);
    assert_ne!(index.header().damaged_parts, 0);
    assert!(index.as_bytes().len() < 16 * file.len() + (4 << 20));
}

#[test]
fn publics_are_located_without_a_walk_over_all_sections() {
    let file = bombs::publics_in_sections();
    assert_eq!(index(&file).ranges().count(), 60_000);
}

#[test]
fn overlapping_stream_names_are_compared_only_at_their_beginning() {
    let file = bombs::overlapping_stream_names();
    assert_eq!(PdbFile::open(&file).unwrap().identity().guid, [7; 16]);
}

#[test]
fn scopes_that_have_themselves_give_no_name() {
    let file = bombs::cyclic_scopes();
    assert_eq!(name_at(&index(&file), 0x1000).as_deref(), Some("<inline function>"));
}

#[test]
fn a_procedure_without_end_is_left_out_and_counted() {
    let file = bombs::endless_inline_sites();
    let index = index(&file);
    assert_eq!((index.ranges().count(), index.header().damaged_parts), (0, 1));
    assert!(index.as_bytes().len() < 16 * file.len() + (4 << 20));
}

#[test]
fn many_lines_are_all_kept() {
    let index = index(&bombs::many_lines());
    assert_eq!(index.header().damaged_parts, 0);
    let hit = index.lookup(0x1000 + 999_998).unwrap().unwrap();
    assert_eq!(hit.frames().next().and_then(|frame| frame.line), Some(500_000));
}

#[test]
fn lines_that_are_only_claimed_are_damage() {
    let index = index(&bombs::claimed_lines());
    assert_eq!(index.header().damaged_parts, 1);
    assert_eq!(name_at(&index, 0x1010).as_deref(), Some("main"));
}

#[test]
fn absurd_containers_are_refused() {
    let files = [
        bombs::huge_pages(),
        bombs::empty_pages(),
        bombs::huge_directory(),
        bombs::claimed_streams(),
        bombs::huge_streams(),
        bombs::absent_streams(),
    ];
    for (n, file) in files.iter().enumerate() {
        assert!(PdbFile::open(file).is_err(), "{n}");
    }
}
