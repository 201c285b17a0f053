// The screen of `tensorlane top`: keys change what is looked at, and figures and a size make lines. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "monitor/top/picture.h"
#include "monitor/top/table.h"

namespace tensorlane::top {

struct Size {
  std::size_t columns = 80, lines = 24;
};

enum class Key { kCharacter, kUp, kDown, kPageUp, kPageDown, kHome, kEnd, kTab, kBackTab, kEnter, kBackspace };
struct Press {
  Key key = Key::kCharacter;
  char character = 0;
};

class Screen {
 public:
  // With `job` it begins at the hosts of that job. `utf8`: the terminal shows more than ASCII.
  Screen(std::string job, bool utf8);

  void show(Picture picture) { picture_ = std::move(picture); }
  // False where the user wants to leave.
  bool press(Press press);
  // The name or id of the job whose hosts are to be asked; empty for none.
  const std::string& job() const { return job_; }
  bool paused() const { return paused_; }

  // At most `size.lines` lines, each at most `size.columns` wide. `age`: seconds since the last figures came.
  std::vector<Line> lines(Size size, double age);

 private:
  // A step into a row, which Backspace takes back.
  struct Step {
    View from;
    std::string row;
    std::string* filter;
  };

  Table shown_table() const;
  Sorting& sorting() { return sorting_[static_cast<std::size_t>(view_)]; }
  std::optional<std::ptrdiff_t> step_of(Press press) const;
  void type(char character);
  void move(std::ptrdiff_t by);
  void sort_by(std::ptrdiff_t step);
  void enter();
  void step_into(std::string* filter, std::string value, View next);
  void leave();
  void look_at(View view);
  void add_body(const Table& table, Size size, std::size_t room, std::vector<Line>* lines);
  Line title_line(Size size, double age) const;
  Line views_line(Size size) const;
  Line keys_line(Size size) const;
  std::vector<Line> help(Size size);
  std::string problem_of() const;
  std::string hint_of(const Table& table) const;
  std::string job_name() const;
  std::string where() const;

  const bool utf8_;
  Picture picture_;
  View view_ = View::kJobs;
  std::string job_, host_, class_;  // what is looked at
  std::vector<Step> steps_;
  std::array<Sorting, kViews> sorting_;
  std::array<std::string, kViews> selected_;  // keys of rows
  std::size_t top_ = 0, page_ = 10;           // the first row that is shown, and how many are
  std::vector<std::string> order_;            // keys of the rows as they were last shown
  std::vector<std::size_t> columns_;          // that were last shown
  bool help_ = false, paused_ = false;
  std::ptrdiff_t help_top_ = 0;
};

// The same for what is no terminal: all that a picture says, at most `rows` rows of each table.
std::vector<std::string> plain_lines(const Picture& picture, std::size_t columns, std::size_t rows, bool utf8);

}  // namespace tensorlane::top
