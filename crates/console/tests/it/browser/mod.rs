//! The pages in a real browser: headless Chromium, by WebDriver.
//!
//! A test takes a [`Driver`](driver::Driver) and opens windows in it. Without `chromium` and `chromedriver` on the
//! path, the tests report themselves as skipped. `CONSOLE_SCREENSHOTS=<folder>` has the screenshots of
//! `docs/console.md` written there.

#[macro_use]
mod driver;
mod window;

mod changes;
mod hostile;
mod keyboard;
mod live;
mod looks;
mod pages;
mod screenshots;
mod shop;
