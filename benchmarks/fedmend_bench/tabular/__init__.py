"""Tables on which nothing was chosen: `auto`, trees and networks beside boosting in the clear."""
