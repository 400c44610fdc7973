#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <regex>
#include <sstream>
#include <string>
#include <vector>
namespace geo {
template <class T> struct Box { T v; template <class F> auto map(F f) const { return f(v); } };
struct Shape { virtual ~Shape() = default; virtual double area() const = 0; };
struct Other { virtual int other() const { return 1; } };
struct Sq : Other, Shape { double s; explicit Sq(double s) : s(s) {} double area() const override { { double t = s * s; if (t > 3) return t + other(); } return s; } };
static inline int helper(int n) { return n * 3 + 1; }
static int twice(int n) { { int k = helper(n); { k += helper(k); return k; } } }
}
int main(int argc, char **argv) {
  std::vector<std::unique_ptr<geo::Shape>> v; std::map<std::string, int> m; std::ostringstream o;
  for (int i = 0; i < argc + 3; i++) { v.push_back(std::make_unique<geo::Sq>(i)); m[std::to_string(i)] = geo::twice(i); }
  std::sort(v.begin(), v.end(), [](auto &a, auto &b) { return a->area() < b->area(); });
  std::regex r("a(b*)c"); std::smatch s; std::string t = argv[0];
  double sum = std::accumulate(v.begin(), v.end(), 0.0, [](double d, auto &p) { return d + p->area(); });
  for (auto &[k, x] : m) o << k << x;
  std::printf("%f %d %s\n", sum, (int)std::regex_search(t, s, r), o.str().c_str());
  return geo::Box<int>{argc}.map([](int x) { return geo::helper(x); });
}
