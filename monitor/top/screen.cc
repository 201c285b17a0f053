#include "monitor/top/screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "monitor/explain/explain.h"

namespace tensorlane::top {
namespace {

// Without an answer for so long the title says so.
constexpr double kOldSeconds = 3;
constexpr std::size_t kNarrow = 40;  // columns

// How each view is sorted before anybody sorts it.
constexpr std::array<std::pair<std::string_view, bool>, kViews> kSorted{{{"sent_bits_per_second", true},
                                                                         {"", false},
                                                                         {"sent_bits_per_second", true},
                                                                         {"rtt_s", true},
                                                                         {"use", true},
                                                                         {"lag_s", true}}};

struct Help {
  std::string_view keys, what;
};
constexpr std::array<Help, 9> kHelp{{{"1 to 6, Tab", "views"},
                                     {"Up, Down, PgUp, PgDn, Home, End", "rows; also j k g G"},
                                     {"Enter", "into a job, a host, a class"},
                                     {"Backspace", "back out"},
                                     {"< >", "sort by the column before or after"},
                                     {"r", "sort the other way"},
                                     {"Space", "stop and go on"},
                                     {"?", "this page; Up and Down move it"},
                                     {"q", "leave"}}};

std::string percent(double share) {
  return figure(Cell(share), Unit::kShare);
}

// Words as lines of at most `columns` columns; longer words are cut.
std::vector<std::string> wrapped(const std::string& text, std::size_t columns) {
  std::vector<std::string> lines;
  std::string line;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && columns_of(line) + 1 + columns_of(word) > columns) {
      lines.push_back(fit(line, columns));
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  lines.push_back(fit(line, columns));
  return lines;
}

std::string summary_of(const Picture& picture, std::size_t columns) {
  std::string text;
  // Where there is little room, the two figures alone.
  if (columns < kNarrow && picture.iteration && picture.silent == 0)
    return figure(Cell(*picture.iteration), Unit::kSeconds) +
           (picture.exposed ? fmt::format(", {} exposed", percent(*picture.exposed)) : ", exposed ?");
  if (!picture.job.empty()) {
    text = "no iteration ended yet";
    if (picture.iteration) {
      const std::string exposed = picture.exposed ? fmt::format("{} of it exposed", percent(*picture.exposed))
                                                  : fmt::format("exposed: not known ({})", explain::kStreamsWait);
      text = fmt::format("iteration {}, {}", figure(Cell(*picture.iteration), Unit::kSeconds), exposed);
    }
    if (!picture.job_state.empty()) text = picture.job_state + ", " + text;
    if (!picture.finding.empty()) text += "; " + picture.finding;
  }
  if (picture.silent > 0) {
    text = fmt::format("{} of {} hosts {} not answer{}{}", picture.silent, picture.hosts,
                       picture.silent == 1 ? "does" : "do", text.empty() ? "" : "; ", text);
  }
  return text;
}

// Of whom the figures of a view are.
std::string scope_of(const Picture& picture, View view, const std::string& job) {
  if (view == View::kJobs)
    return fmt::format("hosts, ranks and tensors of the whole job; other figures of host {} alone", picture.host);
  const std::string hosts = picture.hosts == 1 ? fmt::format("host {} alone", picture.host)
                            : picture.silent == 0
                                ? fmt::format("all {} hosts", picture.hosts)
                                : fmt::format("{} of {} hosts", picture.hosts - picture.silent, picture.hosts);
  const std::string all = fmt::format("{}, {}", picture.job.empty() ? "all jobs" : "job " + job, hosts);
  return view == View::kRails ? all + "; OUT, IN and USE of whatever the NIC carries" : all;
}

}  // namespace

Screen::Screen(std::string job, bool utf8) : utf8_(utf8), job_(std::move(job)) {
  for (std::size_t v = 0; v < kViews; ++v) sorting_[v] = {std::string(kSorted[v].first), kSorted[v].second};
  if (job_.empty()) return;
  view_ = View::kHosts;
  steps_.push_back({View::kJobs, {}, &job_});
}

Table Screen::shown_table() const {
  const auto view = static_cast<std::size_t>(view_);
  Table table = view_ == View::kClasses && !host_.empty() ? picture_.host_classes : picture_.tables[view];
  if (view_ == View::kJobs || view_ == View::kHosts) return table;
  for (const auto& [column, wanted] : {std::pair("host", &host_), std::pair("class", &class_)}) {
    const std::size_t c = table.column(column);
    if (wanted->empty() || c == table.columns.size() || (view_ == View::kClasses && wanted == &class_)) continue;
    std::erase_if(table.rows, [&, w = wanted](const Row& row) {
      const std::string* text = std::get_if<std::string>(&row.cells[c]);
      return text == nullptr || *text != *w;
    });
  }
  return table;
}

// How far a key goes up or down; the most there is for Home and End.
std::optional<std::ptrdiff_t> Screen::step_of(Press press) const {
  const auto page = static_cast<std::ptrdiff_t>(page_), all = std::ssize(order_);
  const bool typed = press.key == Key::kCharacter;
  if (press.key == Key::kUp || (typed && press.character == 'k')) return -1;
  if (press.key == Key::kDown || (typed && press.character == 'j')) return 1;
  if (press.key == Key::kPageUp) return -page;
  if (press.key == Key::kPageDown) return page;
  if (press.key == Key::kHome || (typed && press.character == 'g')) return -all;
  if (press.key == Key::kEnd || (typed && press.character == 'G')) return all;
  return std::nullopt;
}

bool Screen::press(Press press) {
  if (press.key == Key::kCharacter && press.character == 'q') return false;
  const std::optional<std::ptrdiff_t> step = step_of(press);
  if (help_) {
    help_top_ += step.value_or(0);
    help_ = step.has_value();
    return true;
  }
  if (step) move(*step);
  const std::size_t view = static_cast<std::size_t>(view_);
  switch (press.key) {
    case Key::kTab:
      look_at(static_cast<View>((view + 1) % kViews));
      break;
    case Key::kBackTab:
      look_at(static_cast<View>((view + kViews - 1) % kViews));
      break;
    case Key::kEnter:
      enter();
      break;
    case Key::kBackspace:
      leave();
      break;
    case Key::kCharacter:
      type(press.character);
      break;
    default:
      break;
  }
  return true;
}

void Screen::type(char character) {
  switch (character) {
    case '?':
    case 'h':
      help_ = true;
      help_top_ = 0;
      break;
    case '<':
      sort_by(-1);
      break;
    case '>':
      sort_by(1);
      break;
    case 'r':
      sorting().descending = !sorting().descending;
      break;
    case ' ':
      paused_ = !paused_;
      break;
    default:
      if (character >= '1' && character < '1' + static_cast<int>(kViews)) look_at(static_cast<View>(character - '1'));
  }
}

void Screen::look_at(View view) {
  view_ = view;
  top_ = 0;
  order_.clear();
  columns_.clear();
}

void Screen::move(std::ptrdiff_t by) {
  if (order_.empty()) return;
  std::string& selected = selected_[static_cast<std::size_t>(view_)];
  const auto at = std::ranges::find(order_, selected);
  const std::ptrdiff_t index = at == order_.end() ? 0 : at - order_.begin();
  selected = order_[static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(index + by, 0, std::ssize(order_) - 1))];
}

void Screen::sort_by(std::ptrdiff_t step) {
  if (columns_.empty()) return;
  const Table table = shown_table();
  const auto at = std::ranges::find(columns_, table.column(sorting().column));
  const std::ptrdiff_t count = std::ssize(columns_), index = at == columns_.end() ? -(step > 0) : at - columns_.begin();
  const Column& column = table.columns.at(columns_[static_cast<std::size_t>((index + step + 2 * count) % count)]);
  sorting() = {column.key, column.unit != Unit::kText};
}

void Screen::enter() {
  const Table table = shown_table();
  const std::string& key = selected_[static_cast<std::size_t>(view_)];
  const auto row = std::ranges::find(table.rows, key, &Row::key);
  if (row == table.rows.end()) return;
  const auto text = [&](const char* column) {
    const Cell& cell = row->cells.at(table.column(column));
    const std::string* found = std::get_if<std::string>(&cell);
    return found == nullptr ? std::string() : *found;
  };
  if (view_ == View::kJobs && !text("id").empty()) {
    steps_.clear();
    host_.clear();
    class_.clear();
    step_into(&job_, text("id"), View::kHosts);
  } else if (view_ == View::kHosts && row->note.empty()) {
    step_into(&host_, text("host"), View::kClasses);
  } else if (view_ == View::kClasses && !job_.empty()) {
    step_into(&class_, text("class"), View::kPeers);
  }
}

void Screen::step_into(std::string* filter, std::string value, View next) {
  std::erase_if(steps_, [filter](const Step& step) { return step.filter == filter; });
  steps_.push_back({view_, selected_[static_cast<std::size_t>(view_)], filter});
  *filter = std::move(value);
  look_at(next);
}

void Screen::leave() {
  if (steps_.empty()) return look_at(View::kJobs);
  const Step step = steps_.back();
  steps_.pop_back();
  step.filter->clear();
  look_at(step.from);
  selected_[static_cast<std::size_t>(view_)] = step.row;
}

// What is looked at may be an id: its name is in the row of the job, also before its hosts have answered.
std::string Screen::job_name() const {
  if (picture_.asked == job_ && !picture_.job_name.empty()) return picture_.job_name;
  const Table& jobs = picture_.tables[static_cast<std::size_t>(View::kJobs)];
  const std::size_t name = jobs.column("job");
  const auto row = std::ranges::find(jobs.rows, job_, &Row::key);
  const std::string* found = row == jobs.rows.end() ? nullptr : std::get_if<std::string>(&row->cells.at(name));
  return found == nullptr || found->empty() ? job_ : *found;
}

std::string Screen::where() const {
  std::string text;
  if (!job_.empty()) text = "job " + job_name();
  if (!host_.empty()) text += (text.empty() ? "host " : ", host ") + host_;
  if (!class_.empty()) text += ", class " + class_;
  return text;
}

Line Screen::title_line(Size size, double age) const {
  std::string text = where();
  if (text.empty()) text = picture_.host.empty() ? "tensorlane" : "host " + picture_.host;
  text = clean(text, utf8_);
  std::string state = paused_ ? "paused" : age > kOldSeconds ? fmt::format("no answer for {:.0f} s", age) : "";
  if (state.empty()) return {{fit(text, size.columns), Tone::kTitle}};
  const std::size_t room = size.columns - std::min(size.columns, columns_of(state) + 1);
  return {{fit(text, room), Tone::kTitle}, {fit(" " + state, size.columns - room), Tone::kWarn}};
}

Line Screen::views_line(Size size) const {
  Line line;
  std::size_t used = 0;
  for (std::size_t v = 0; v < kViews; ++v) {
    const std::string name = fmt::format(" {} {} ", v + 1, kViewNames[v]);
    line.push_back({name, v == static_cast<std::size_t>(view_) ? Tone::kSelected : Tone::kDim});
    used += name.size();
  }
  if (used <= size.columns) {
    line.push_back({std::string(size.columns - used, ' '), Tone::kPlain});
    return line;
  }
  const auto view = static_cast<std::size_t>(view_);
  return {{fit(fmt::format(" {} {} (Tab)", view + 1, kViewNames[view]), size.columns), Tone::kSelected}};
}

Line Screen::keys_line(Size size) const {
  std::string text = "q quit";
  for (const char* more :
       {"? keys", "Enter open", "Backspace back", "< > sort", "r reverse", "Tab view", "Space pause"}) {
    if (text.size() + 2 + std::string_view(more).size() > size.columns) break;
    text += std::string("  ") + more;
  }
  return {{fit(text, size.columns), Tone::kDim}};
}

std::vector<Line> Screen::help(Size size) {
  std::vector<Line> lines{{{fit("keys of tensorlane top", size.columns), Tone::kTitle}}};
  const auto add = [&](const std::string& text, Tone tone) {
    for (std::string& line : wrapped(text, size.columns)) lines.push_back({{std::move(line), tone}});
  };
  for (const Help& one : kHelp) {
    // Two columns where there is room for two.
    if (size.columns >= 60)
      add(fmt::format("{:<32} {}", one.keys, one.what), Tone::kPlain);
    else
      add(fmt::format("{}: {}", one.keys, one.what), Tone::kPlain);
  }
  add(fmt::format("columns of {}", kViewNames[static_cast<std::size_t>(view_)]), Tone::kTitle);
  for (const Column& column : picture_.tables[static_cast<std::size_t>(view_)].columns)
    add(fmt::format("{}: {}", column.title, column.about), Tone::kPlain);
  help_top_ = std::clamp<std::ptrdiff_t>(
      help_top_, 0, std::max<std::ptrdiff_t>(std::ssize(lines) - static_cast<std::ptrdiff_t>(size.lines), 0));
  lines.erase(lines.begin(), lines.begin() + help_top_);
  lines.resize(std::min(lines.size(), size.lines));
  return lines;
}

void Screen::add_body(const Table& table, Size size, std::size_t room, std::vector<Line>* lines) {
  const Layout layout = lay_out(table, size.columns, utf8_, sorting());
  columns_.clear();
  for (const Layout::Shown& shown : layout.columns) columns_.push_back(shown.column);
  if (room > 1) {
    lines->push_back(head_line(table, layout, utf8_, sorting()));
    --room;
  }
  std::string& selected = selected_[static_cast<std::size_t>(view_)];
  order_.clear();
  for (const Row& row : table.rows) order_.push_back(row.key);
  page_ = std::max<std::size_t>(room, 1);
  auto at = static_cast<std::size_t>(std::ranges::find(order_, selected) - order_.begin());
  if (at == order_.size() && !order_.empty()) {
    at = 0;
    selected = order_.front();
  }
  if (at < top_) top_ = at;
  if (at >= top_ + page_) top_ = at + 1 - page_;
  top_ = std::min(top_, order_.size() - std::min(order_.size(), page_));
  for (std::size_t r = top_; r < std::min(top_ + room, table.rows.size()); ++r)
    lines->push_back(row_line(table, table.rows[r], layout, utf8_, r == at));
}

// Why there are no figures of what is looked at.
std::string Screen::problem_of() const {
  if (!picture_.error.empty()) return picture_.error;
  return view_ != View::kJobs && picture_.asked == job_ ? picture_.no_job : "";
}

std::string Screen::hint_of(const Table& table) const {
  if (picture_.host.empty()) return "asking the daemon ...";
  if (view_ == View::kJobs) return table.rows.empty() ? "no jobs on this host" : "";
  if (picture_.asked != job_) return job_.empty() ? "asking the daemon ..." : "asking the hosts of the job ...";
  if (!table.rows.empty()) return "";
  return job_.empty() ? "choose a job first: 1, then Enter" : "nothing yet";
}

std::vector<Line> Screen::lines(Size size, double age) {
  if (size.columns == 0 || size.lines == 0) return {};
  if (help_) return help(size);
  std::vector<Line> lines{title_line(size, age)};
  if (size.lines >= 6) lines.push_back(views_line(size));
  Table table = shown_table();
  sort_rows(&table, sorting());
  const std::string problem = problem_of(), hint = hint_of(table);
  const std::string summary = picture_.asked == job_ ? clean(summary_of(picture_, size.columns), utf8_) : "";
  if (size.lines >= 8 && !summary.empty() && view_ != View::kJobs) {
    const Tone tone = picture_.silent > 0 ? Tone::kWarn : Tone::kPlain;
    lines.push_back({{fit(summary, size.columns), tone}});
  }
  const std::size_t keys = size.lines >= 4 ? 1 : 0;
  const std::size_t room = size.lines - std::min(size.lines, lines.size() + keys);
  if (problem.empty() && hint.empty()) {
    add_body(table, size, room, &lines);
  } else {
    order_.clear();
    const Tone tone = problem.empty() ? Tone::kDim : Tone::kBad;
    for (std::string& line : wrapped(clean(problem.empty() ? hint : problem, utf8_), size.columns)) {
      if (lines.size() + keys < size.lines) lines.push_back({{std::move(line), tone}});
    }
  }
  while (lines.size() + keys < size.lines) lines.emplace_back();
  if (keys > 0) lines.push_back(keys_line(size));
  return lines;
}

std::vector<std::string> plain_lines(const Picture& picture, std::size_t columns, std::size_t rows, bool utf8) {
  std::vector<std::string> all;
  const auto add = [&](const Line& line) {
    std::string text;
    for (const Span& span : line) text += span.text;
    text.erase(text.find_last_not_of(' ') + 1);
    all.push_back(std::move(text));
  };
  const std::string name = picture.job_name.empty() ? picture.job : picture.job_name;
  const std::string where =
      picture.job.empty() ? "host " + picture.host : fmt::format("job {}, asked on host {}", name, picture.host);
  for (const std::string& text : {where, summary_of(picture, columns)}) {
    for (const std::string& line : wrapped(clean(text, utf8), columns)) add({{line}});
  }
  for (std::size_t v = 0; v < kViews; ++v) {
    Table table = picture.tables[v];
    if (table.rows.empty()) continue;
    const Sorting sorting{std::string(kSorted[v].first), kSorted[v].second};
    sort_rows(&table, sorting);
    const Layout layout = lay_out(table, columns, utf8, sorting);
    add({});
    for (const std::string& line :
         wrapped(clean(fmt::format("{} ({})", kViewNames[v], scope_of(picture, static_cast<View>(v), name)), utf8),
                 columns))
      add({{line}});
    add(head_line(table, layout, utf8, {}));
    for (std::size_t r = 0; r < std::min(rows, table.rows.size()); ++r)
      add(row_line(table, table.rows[r], layout, utf8, false));
    if (table.rows.size() > rows) add({{fmt::format("and {} more: --json has all", table.rows.size() - rows)}});
  }
  return all;
}

}  // namespace tensorlane::top
