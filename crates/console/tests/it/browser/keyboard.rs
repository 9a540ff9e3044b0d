//! The pages by keyboard alone.

use console::WebOptions;
use export_queue::hc_dequeue::Place;
use fantoccini::key::Key;

use crate::browser::driver::{Driver, View};
use crate::browser::looks::COLORS;
use crate::browser::window::{Window, assert_none, serve, world};

in_a_browser!(
    the_keyboard_reaches_a_queue_an_item_and_a_button,
    the_focus_is_visible_and_survives_what_moves,
);

/// Returns what is wrong with how the focus shows. It takes an outline that stands out from its background.
const FOCUS: &str = "const focused = document.activeElement, style = getComputedStyle(focused); \
    const box = focused.getBoundingClientRect(), problems = []; \
    if (focused === document.body) problems.push('nothing has the focus'); \
    if (style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 2) problems.push('no outline'); \
    if (contrast(rgb(style.outlineColor), ground(focused.parentElement)) < 3) problems.push('faint'); \
    if (box.width === 0 || box.height === 0 || box.right <= 0 || box.left >= innerWidth || \
        box.bottom <= 0 || box.top >= innerHeight) problems.push('out of sight'); \
    return problems.map(problem => `${problem}: ${focused.outerHTML.slice(0, 200)}`)";

/// How often the tab key is pressed until something counts as out of reach.
const MANY: usize = 60;

async fn assert_focus_visible(window: &Window) {
    let problems: Vec<String> = window.value(&format!("{COLORS}{FOCUS}")).await;
    assert_none(&problems, &window.path().await);
}

async fn has_focus(window: &Window, selector: &str) -> bool {
    let script = "return document.activeElement.matches(arguments[0])";
    window.value_of(script, &[selector]).await
}

/// Presses the tab key until an element has the focus, which is visible on the way.
async fn tab_to(window: &Window, selector: &str) {
    for _ in 0..MANY {
        window.press(Key::Tab).await;
        assert_focus_visible(window).await;
        if has_focus(window, selector).await {
            return;
        }
    }
    panic!("{selector} is out of reach on {}", window.path().await);
}

async fn the_keyboard_reaches_a_queue_an_item_and_a_button(driver: &Driver) {
    let world = world().await;
    let options = WebOptions::new().allow_changes(true);
    let base = serve(world.console(), options).await;
    let window = driver.open(View::DESKTOP).await;
    window.go(&base).await;
    window.press(Key::Tab).await;
    assert!(has_focus(&window, ".skip").await, "the first stop");
    assert_focus_visible(&window).await;
    window.press(Key::Enter).await;
    window.press(Key::Tab).await;
    assert!(
        has_focus(&window, "main th a").await,
        "the header is skipped"
    );
    window.go(&base).await;
    tab_to(&window, "th a[href='/queues/jobs']").await;
    window.press(Key::Enter).await;
    window.wait("h1", |text| text == "jobs").await;
    tab_to(&window, "a[href$='/items/queued']").await;
    window.press(Key::Enter).await;
    window.wait("h1", |text| text.starts_with("queued")).await;
    let item = &world.items.queued[2];
    tab_to(&window, &format!("a[href$='/item/{item}']")).await;
    window.press(Key::Enter).await;
    window.wait("h1", |text| text == "Item").await;
    tab_to(&window, "button[value=cancel]").await;
    window.press(Key::Enter).await;
    let notice = window.wait(".notice", |text| !text.is_empty()).await;
    assert!(notice.starts_with("Cancelled 1 item"), "{notice}");
    let jobs = &world.jobs;
    let read = |tr| async move { jobs.status(&tr, item).await };
    let status = world.runner.run(read).await.unwrap().unwrap();
    assert!(matches!(status.place, Place::Done { .. }));
}

async fn the_focus_is_visible_and_survives_what_moves(driver: &Driver) {
    let world = world().await;
    let base = serve(world.console(), WebOptions::new()).await;
    for view in [View::DESKTOP, View::DESKTOP.dark()] {
        let window = driver.open(view).await;
        let pages = [
            (
                "/",
                "th a[href='/queues/jobs']",
                "tr[data-key=jobs] td[data-label=Queued]",
            ),
            (
                "/queues/jobs",
                ".tabs a[href$='/items/queued']",
                ".tabs a[href$='/items/queued'] b",
            ),
        ];
        for (path, link, count) in pages {
            window.go(&format!("{base}{path}")).await;
            window
                .wait("#live-status", |text| text.starts_with("Live"))
                .await;
            tab_to(&window, link).await;
            let _: () = window
                .value("window.focused = document.activeElement")
                .await;
            let before = window.text(count).await;
            world.enqueue(60).await;
            window.wait(count, |text| text != before).await;
            let is_same = "return window.focused === document.activeElement";
            assert!(window.value::<bool>(is_same).await, "{path}");
            assert!(has_focus(&window, link).await);
            assert_focus_visible(&window).await;
        }
    }
}
