//! Advice of programs about mapped files.

use fbuf::BytesSource;
use fs::block::Operation;
use nucleus::PAGE_SIZE;

use super::{
    machine,
    support::{FLAGS, image::SMALL},
};

const PAGES: u64 = 64;

#[test]
fn it_reaches_the_pages_of_the_file() {
    machine::walk_on(SMALL, 2, |machine, walk| {
        let disk = &machine.disk;
        let file = walk.open(b"/file", FLAGS, 0o600).unwrap();
        let bytes = vec![5; PAGES as usize * PAGE_SIZE];
        let write = |len: usize| {
            let mut source = BytesSource::new(&bytes[..len]);
            assert_eq!(file.write(Some(0), FLAGS, &mut source), Ok(len));
        };
        write(bytes.len());
        assert_eq!(file.sync(false), Ok(()));
        let (pages, mapped) = (file.cached().unwrap(), file.pager().unwrap());
        assert_eq!(pages.give_up(0..PAGES, usize::MAX), PAGES as usize);
        mapped.prefetch(0..PAGES);
        for page in 0..PAGES {
            pages.object().wait_unbusy(page);
        }
        assert_eq!(pages.counts().resident, PAGES as usize);
        mapped.evict(0..PAGES / 2);
        assert_eq!(pages.counts().resident, PAGES as usize / 2);
        // Starting writeback does not wait for the medium.
        write(PAGE_SIZE);
        let before = disk.count(Operation::Flush);
        assert_eq!(mapped.writeback(0..PAGES, false), Ok(()));
        pages.wait_written(0..PAGES);
        assert_eq!(pages.counts().dirty, 0);
        assert_eq!(disk.count(Operation::Flush), before);
        write(PAGE_SIZE);
        assert_eq!(mapped.writeback(0..PAGES, true), Ok(()));
        assert!(disk.count(Operation::Flush) > before);
    });
}
