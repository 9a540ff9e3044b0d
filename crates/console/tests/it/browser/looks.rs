//! The widths of a phone and of a small window, and colors that can be read in light and in dark.

use console::WebOptions;
use serde_json::Value;

use crate::browser::driver::{Driver, View};
use crate::browser::hostile::add_hostile;
use crate::browser::window::{Window, assert_none, serve, world};

in_a_browser!(
    no_page_scrolls_sideways,
    text_stands_out_in_light,
    text_stands_out_in_dark,
);

/// Functions of scripts, by the formulas of WCAG 2: the contrast of two colors, and the color that an element stands
/// on.
pub(crate) const COLORS: &str = "const rgb = text => text.match(/[\\d.]+/g).map(Number); \
    const linear = part => part <= 10.31475 ? part / 3294.6 : ((part / 255 + .055) / 1.055) ** 2.4; \
    const luminance = ([red, green, blue]) => \
        .2126 * linear(red) + .7152 * linear(green) + .0722 * linear(blue); \
    const contrast = (one, other) => { \
        const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b); \
        return (light + .05) / (dark + .05); }; \
    const ground = element => { \
        for (let at = element; at; at = at.parentElement) { \
            const color = rgb(getComputedStyle(at).backgroundColor); \
            if (color[3] !== 0) return color; \
        } \
        return [255, 255, 255]; };";

/// Returns the texts that do not stand out from what they are written on.
const FAINT: &str = "const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); \
    const faint = []; let seen = 0; \
    while (texts.nextNode()) { \
        const element = texts.currentNode.parentElement; \
        if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue; \
        seen += 1; \
        const found = contrast(rgb(getComputedStyle(element).color), ground(element)); \
        if (found < 4.5) faint.push(`${found.toFixed(2)}: ${element.outerHTML.slice(0, 200)}`); \
    } \
    return seen > 5 ? faint : ['there is no text']";

/// Returns the elements that are wider than the window, if that makes the page scroll.
const TOO_WIDE: &str = "if (innerWidth !== Number(arguments[0])) return [`a window of ${innerWidth}`]; \
    if (document.documentElement.scrollWidth <= innerWidth) return []; \
    return [...document.querySelectorAll('body *')] \
        .filter(element => element.getBoundingClientRect().right > innerWidth) \
        .map(element => element.outerHTML.slice(0, 100))";

/// The narrowest window in which the overview is a table.
const NARROWEST: u32 = 961;

async fn no_page_scrolls_sideways(driver: &Driver) {
    let world = world().await;
    add_hostile(&world).await;
    let options = WebOptions::new().allow_changes(true);
    let base = serve(world.console(), options).await;
    for width in [View::PHONE.width, NARROWEST] {
        let view = View {
            width,
            ..View::PHONE
        };
        let window = driver.open(view).await;
        let look = async |path: &str| {
            let wide: Vec<String> = window.value_of(TOO_WIDE, &[&width.to_string()]).await;
            assert_none(&wide, path);
        };
        window.crawl(&base, look).await;
    }
}

async fn text_stands_out_in_light(driver: &Driver) {
    let window = driver.open(View::DESKTOP).await;
    let brightness = assert_readable(&window).await;
    assert!(brightness > 0.8, "{brightness}");
}

async fn text_stands_out_in_dark(driver: &Driver) {
    let window = driver.open(View::DESKTOP.dark()).await;
    let brightness = assert_readable(&window).await;
    assert!(brightness < 0.1, "{brightness}");
}

/// Looks at the colors of all pages, and returns the luminance of what they are written on.
async fn assert_readable(window: &Window) -> f64 {
    let world = world().await;
    add_hostile(&world).await;
    let options = WebOptions::new().allow_changes(true);
    let base = serve(world.console(), options).await;
    let look = async |path: &str| {
        let faint: Vec<String> = window.value(&format!("{COLORS}{FAINT}")).await;
        assert_none(&faint, path);
    };
    window.crawl(&base, look).await;
    let script = format!("{COLORS}return luminance(ground(document.body))");
    let brightness: Value = window.value(&script).await;
    brightness.as_f64().unwrap()
}
