//! Which pages of a cache belong to which sequence.

use crate::kernels::pages::PAGE;

/// A sequence of tokens in a cache.
#[derive(Debug, Clone, Default)]
pub(super) struct Tokens {
    /// The number of tokens so far, with those that a sliding window has left behind.
    pub length: usize,
    /// The pages that are kept, and how many pages were before the first of them.
    pub pages: Vec<u32>,
    pub forgotten: usize,
}

/// Returns the number of pages that so many tokens take.
pub(super) fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE as usize)
}

/// The pages of a cache. Sequences may share some.
#[derive(Debug, Clone)]
pub(super) struct Pages {
    /// The number of sequences that have each page.
    holders: Vec<u32>,
    free: Vec<u32>,
}

impl Pages {
    pub fn new(count: usize) -> Self {
        Pages { holders: vec![0; count], free: (0..count as u32).rev().collect() }
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.holders[page as usize] = 1;
        Some(page)
    }

    fn give_back(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    /// Whether another sequence shares the page that the next token goes to.
    fn must_copy(&self, tokens: &Tokens) -> bool {
        let is_partly_full = !tokens.length.is_multiple_of(PAGE as usize);
        is_partly_full && tokens.pages.last().is_some_and(|&page| self.holders[page as usize] > 1)
    }

    /// Forgets the pages of a sequence that the next query does not see, if it sees `window` tokens.
    pub fn forget(&mut self, tokens: &mut Tokens, window: Option<usize>) {
        let seen_from = window.map_or(0, |window| (tokens.length + 1).saturating_sub(window));
        let unseen = (seen_from / PAGE as usize).saturating_sub(tokens.forgotten);
        let count = unseen.min(tokens.pages.len());
        tokens.pages.drain(..count).for_each(|page| self.give_back(page));
        tokens.forgotten += count;
    }

    /// Grows a sequence by some tokens. Returns the page to copy, and the page that gets the copy. `None` if there are
    /// too few pages.
    pub fn grow(&mut self, tokens: &mut Tokens, more: usize) -> Option<Option<[u32; 2]>> {
        let mut copied = None;
        if self.must_copy(tokens)
            && let Some(last) = tokens.pages.last_mut()
        {
            let page = self.take()?;
            copied = Some([*last, page]);
            self.give_back(std::mem::replace(last, page));
        }
        tokens.length += more;
        while tokens.forgotten + tokens.pages.len() < pages_of(tokens.length) {
            tokens.pages.push(self.take()?);
        }
        Some(copied)
    }

    /// Returns a sequence that shares all pages of another one.
    pub fn share(&mut self, tokens: &Tokens) -> Tokens {
        tokens.pages.iter().for_each(|&page| self.holders[page as usize] += 1);
        tokens.clone()
    }

    /// Gives a sequence back the pages that it had before it grew.
    pub fn restore(&mut self, tokens: &mut Tokens, before: Tokens) {
        for &page in &before.pages {
            let holders = &mut self.holders[page as usize];
            *holders += 1;
            if *holders == 1 {
                self.free.retain(|&free| free != page);
            }
        }
        tokens.pages.iter().for_each(|&page| self.give_back(page));
        *tokens = before;
    }

    /// Shortens a sequence.
    pub fn shorten(&mut self, tokens: &mut Tokens, length: usize) {
        let kept = pages_of(length).saturating_sub(tokens.forgotten);
        for page in tokens.pages.drain(kept.min(tokens.pages.len())..) {
            self.give_back(page);
        }
        tokens.length = length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grow(pages: &mut Pages, tokens: &mut Tokens, more: usize, window: Option<usize>) -> Option<[u32; 2]> {
        pages.forget(tokens, window);
        pages.grow(tokens, more).unwrap()
    }

    #[test]
    fn sequences_grow_page_by_page() {
        let (mut pages, mut tokens) = (Pages::new(3), Tokens::default());
        for (more, held) in [(1, 1), (63, 1), (1, 2), (64, 3), (63, 3)] {
            assert_eq!(grow(&mut pages, &mut tokens, more, None), None);
            assert_eq!((tokens.pages.len(), pages.free()), (held, 3 - held));
        }
        assert_eq!(pages.grow(&mut tokens.clone(), 1), None);
        pages.shorten(&mut tokens, 64);
        assert_eq!((tokens.length, tokens.pages.len(), pages.free()), (64, 1, 2));
    }

    #[test]
    fn forks_share_pages_until_they_write_to_them() {
        let (mut pages, mut first) = (Pages::new(5), Tokens::default());
        grow(&mut pages, &mut first, 100, None);
        let mut second = pages.share(&first);
        assert_eq!((pages.free(), &second.pages), (3, &first.pages));
        // The full page stays shared.
        let [from, to] = grow(&mut pages, &mut second, 1, None).unwrap();
        assert_eq!((from, to, second.pages[0]), (first.pages[1], second.pages[1], first.pages[0]));
        // The first sequence holds its last page alone now.
        assert_eq!(grow(&mut pages, &mut first, 1, None), None);
        pages.shorten(&mut first, 0);
        assert_eq!(pages.free(), 3);
        pages.shorten(&mut second, 0);
        assert_eq!(pages.free(), 5);
    }

    #[test]
    fn forks_of_whole_pages_copy_nothing() {
        let (mut pages, mut first) = (Pages::new(3), Tokens::default());
        grow(&mut pages, &mut first, 64, None);
        let mut second = pages.share(&first);
        assert_eq!(grow(&mut pages, &mut second, 1, None), None);
        assert_eq!(pages.free(), 1);
    }

    #[test]
    fn growth_can_be_taken_back() {
        let (mut pages, mut first) = (Pages::new(6), Tokens::default());
        grow(&mut pages, &mut first, 130, None);
        let mut second = pages.share(&first);
        let (held, free) = (pages.holders.clone(), pages.free());
        let before = second.clone();
        // It forgets a page, copies another one, and gets a third.
        pages.forget(&mut second, Some(60));
        pages.grow(&mut second, 100).unwrap().unwrap();
        assert_ne!(pages.holders, held);
        pages.restore(&mut second, before.clone());
        assert_eq!((&second.pages, second.length, second.forgotten), (&before.pages, 130, 0));
        assert_eq!((&pages.holders, pages.free()), (&held, free));
        // What was free alone is taken back, too.
        pages.shorten(&mut first, 0);
        let before = second.clone();
        pages.forget(&mut second, Some(60));
        pages.restore(&mut second, before);
        pages.shorten(&mut second, 0);
        assert_eq!(pages.free(), 6);
    }

    #[test]
    fn pages_before_the_window_become_free() {
        let (mut pages, mut tokens) = (Pages::new(3), Tokens::default());
        for _ in 0..1000 {
            grow(&mut pages, &mut tokens, 1, Some(65));
            // The page with the first token that the last query sees.
            assert!(tokens.forgotten <= tokens.length.saturating_sub(65) / 64);
            assert!(tokens.pages.len() <= 3 && tokens.forgotten + tokens.pages.len() == pages_of(tokens.length));
        }
        assert_eq!(tokens.length, 1000);
    }
}
